#pragma once
// Which backends a Communicator could use on this machine.
#include <string>
#include <vector>

namespace tutti {

/// One backend, and whether it can be had here.
struct BackendStatus {
  std::string name;      ///< as CommunicatorOptions::backend takes it
  bool usable = false;   ///< whether connect() would take it on this machine
  std::string reason{};  ///< why not; empty where it is usable
};

/// Every backend that tutti knows of. Tries what this machine allows: a listening socket, shared memory. Needs no other
/// rank and does not throw.
std::vector<BackendStatus> backend_statuses();

}  // namespace tutti
