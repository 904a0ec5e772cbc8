#include "coordinator/tls.h"

#include <openssl/evp.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace tutti::coordinator {
namespace {

// Connections may last until static objects are destroyed, after OpenSSL's own cleanup at the end of the process.
SSL_CTX* new_context(Side side) {
  OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  return SSL_CTX_new(side == Side::server ? TLS_server_method() : TLS_client_method());
}

}  // namespace

// OpenSSL's callbacks find the key through the context's application data.
struct PskCallbacks {
  static constexpr std::string_view identity = "tutti";

  static unsigned copy_key(SSL* ssl, unsigned char* key, unsigned size) {
    const auto* context = static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
    if (size < context->key_.size()) return 0;
    std::memcpy(key, context->key_.data(), context->key_.size());
    return static_cast<unsigned>(context->key_.size());
  }
  static unsigned on_client(SSL* ssl, const char*, char* to, unsigned size, unsigned char* key, unsigned key_size) {
    if (size <= identity.size()) return 0;
    std::memcpy(to, identity.data(), identity.size());
    to[identity.size()] = '\0';
    return copy_key(ssl, key, key_size);
  }
  static unsigned on_server(SSL* ssl, const char*, unsigned char* key, unsigned size) {
    return copy_key(ssl, key, size);
  }
};

TlsContext::TlsContext(const JobSecret& secret, Side side, std::string_view purpose)
    : side_(side), context_(new_context(side)) {
  // Another label than that of other uses of the secret, so that no proof is valid for two of them.
  const std::string label = "tutti " + std::string(purpose) + " TLS 1.3 PSK\n";
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const auto bytes = secret.bytes();
  // The ciphersuite's hash must be SHA-256, the only one that OpenSSL allows with these callbacks.
  if (context_ == nullptr || hash == nullptr || EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) != 1 ||
      EVP_DigestUpdate(hash.get(), label.data(), label.size()) != 1 ||
      EVP_DigestUpdate(hash.get(), bytes.data(), bytes.size()) != 1 ||
      EVP_DigestFinal_ex(hash.get(), key_.data(), nullptr) != 1 ||
      SSL_CTX_set_min_proto_version(get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(get(), "TLS_AES_128_GCM_SHA256") != 1 || SSL_CTX_set_num_tickets(get(), 0) != 1) {
    throw std::runtime_error("OpenSSL does not provide TLS 1.3 with a pre-shared key here");
  }
  SSL_CTX_set_app_data(get(), this);
  SSL_CTX_set_mode(get(), SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(get(), SSL_OP_NO_RENEGOTIATION);
  if (side == Side::server) {
    SSL_CTX_set_psk_server_callback(get(), &PskCallbacks::on_server);
  } else {
    SSL_CTX_set_psk_client_callback(get(), &PskCallbacks::on_client);
    // A server that offers a certificate instead of the proof is refused: no authority is trusted.
    SSL_CTX_set_verify(get(), SSL_VERIFY_PEER, nullptr);
  }
}

}  // namespace tutti::coordinator
