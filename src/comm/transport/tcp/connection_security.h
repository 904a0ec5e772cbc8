#pragma once
// How ranks protect their connections to each other with the job's secret.
#include <memory>

#include "coordinator/tls.h"
#include "core/job_secret.h"

namespace tutti::comm {

/// Immutable, so threads may share it.
class ConnectionSecurity {
 public:
  /// `secret` may be null unless `encrypts`. Throws std::runtime_error if OpenSSL lacks TLS 1.3.
  ConnectionSecurity(const JobSecretPtr& secret, bool encrypts) : encrypts_(encrypts) {
    if (!secret && !encrypts) return;
    // Two labels, so that no connection opens between a rank that encrypts and one that does not.
    const char* const purpose = encrypts ? "encrypted messages" : "messages";
    client_ = std::make_unique<coordinator::TlsContext>(*secret, coordinator::Side::client, purpose);
    server_ = std::make_unique<coordinator::TlsContext>(*secret, coordinator::Side::server, purpose);
  }

  /// For the proof of the secret; null if the job has none.
  const coordinator::TlsContext* tls(coordinator::Side side) const {
    return side == coordinator::Side::client ? client_.get() : server_.get();
  }
  /// Whether TLS also encrypts the frames.
  bool encrypts() const { return encrypts_; }

 private:
  bool encrypts_;
  std::unique_ptr<const coordinator::TlsContext> client_;
  std::unique_ptr<const coordinator::TlsContext> server_;
};

}  // namespace tutti::comm
