#pragma once
// TLS 1.3 with the job's secret as pre-shared key: both sides prove that they know it, and all bytes are encrypted.
// There are no certificates.
#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string_view>

#include "core/job_secret.h"

namespace tutti::coordinator {

enum class Side { client, server };

/// The settings of all connections of one side. Immutable, so threads may share it.
class TlsContext {
 public:
  /// Connections for different purposes have different keys. Throws std::runtime_error if OpenSSL does not provide what
  /// it needs.
  TlsContext(const JobSecret& secret, Side side, std::string_view purpose = "coordinator");
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  Side side() const { return side_; }
  SSL_CTX* get() const { return context_.get(); }

 private:
  friend struct PskCallbacks;
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  Side side_;
  std::array<unsigned char, 32> key_{};  // a hash of the secret, which may be longer than OpenSSL allows
  std::unique_ptr<SSL_CTX, Free> context_;
};

}  // namespace tutti::coordinator
