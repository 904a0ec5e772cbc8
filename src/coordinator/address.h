#pragma once
// Where a coordinator listens: a TCP address, or "local:NAME".
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/clock.h"
#include "core/file_descriptor.h"

namespace tutti::coordinator {

/// The name of an abstract Unix socket; nullopt for a TCP host.
std::optional<std::string> local_name(const std::string& host);

class Address {
 public:
  /// Waits for a name that no machine has yet, until `deadline`. Throws TimeoutError.
  Address(const std::string& host, std::uint16_t port, Time deadline);

  /// Starts to connect to the next of its numeric addresses. Throws std::system_error, and UsageError if a process of
  /// another user listens at the local name.
  FileDescriptor start_connecting();
  /// The last attempt has succeeded: the later ones use its numeric address.
  void keep();
  std::string describe() const;

 private:
  std::string host_;
  std::uint16_t port_;
  std::vector<std::string> numeric_hosts_{};  // empty for a local name
  std::size_t attempts_ = 0;
};

}  // namespace tutti::coordinator
