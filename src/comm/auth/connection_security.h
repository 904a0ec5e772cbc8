#pragma once
// How ranks protect their connections to each other with the job's secret.
#include <memory>
#include <utility>

#include "coordinator/tls.h"
#include "core/job_secret.h"

namespace tutti::comm {

/// Immutable, so threads may share it.
class ConnectionSecurity {
 public:
  /// `secret` may be null unless `encrypts`. Throws std::runtime_error if OpenSSL lacks TLS 1.3.
  ConnectionSecurity(JobSecretPtr secret, bool encrypts) : secret_(std::move(secret)) {
    constexpr const char* purpose = "messages";
    if (!encrypts) return;
    client_ = std::make_unique<coordinator::TlsContext>(*secret_, coordinator::Side::client, purpose);
    server_ = std::make_unique<coordinator::TlsContext>(*secret_, coordinator::Side::server, purpose);
  }

  /// Null: ranks prove nothing to each other.
  const JobSecretPtr& secret() const { return secret_; }
  /// Null: connections are not encrypted.
  const coordinator::TlsContext* tls(coordinator::Side side) const {
    return side == coordinator::Side::client ? client_.get() : server_.get();
  }

 private:
  JobSecretPtr secret_;
  std::unique_ptr<const coordinator::TlsContext> client_;
  std::unique_ptr<const coordinator::TlsContext> server_;
};

}  // namespace tutti::comm
