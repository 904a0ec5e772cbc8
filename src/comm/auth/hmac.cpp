#include "comm/auth/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::comm {

Digest hmac_sha256(const JobSecret& secret, std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  const auto key = secret.bytes();
  Digest digest{};
  unsigned int size = 0;
  const auto* const result = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                    reinterpret_cast<const unsigned char*>(all.data()), all.size(),
                                    reinterpret_cast<unsigned char*>(digest.data()), &size);
  if (result == nullptr || size != digest.size()) {
    throw Error(
        "OpenSSL's libcrypto does not compute HMAC-SHA256 here, so ranks cannot prove that they know the secret.");
  }
  return digest;
}

bool constant_time_equal(const Digest& one, const Digest& other) {
  return ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Challenge random_challenge() {
  Challenge challenge{};
  if (::getrandom(challenge.data(), challenge.size(), 0) != static_cast<ssize_t>(challenge.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return challenge;
}

}  // namespace tutti::comm
