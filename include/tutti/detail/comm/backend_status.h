#pragma once
// Reports which backends a Communicator can use on this machine.
#include <string>
#include <vector>

namespace tutti {

/// A backend and its status on this machine.
struct BackendStatus {
  std::string name;      ///< a value of CommunicatorOptions::backend
  bool usable = false;   ///< whether connect() accepts it on this machine
  std::string reason{};  ///< why it is not usable; empty if it is
};

/// Returns the status of every backend that tutti knows. Tries to listen on a socket and to map shared memory. Needs no
/// other rank. Does not throw.
std::vector<BackendStatus> backend_statuses();

}  // namespace tutti
