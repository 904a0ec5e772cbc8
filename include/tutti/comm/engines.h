#pragma once
// Which engines a Communicator could use on this machine.
#include <string>
#include <vector>

namespace tutti {

/// One engine, and whether it can be had here.
struct EngineStatus {
  std::string name;      ///< as CommunicatorOptions::engine takes it
  bool usable = false;   ///< whether connect() would take it on this machine
  std::string reason{};  ///< why not; empty where it is usable
};

/// Every engine that tutti knows of. Tries what this machine allows: a listening socket, shared memory. Needs no other
/// rank and does not throw.
std::vector<EngineStatus> engine_statuses();

}  // namespace tutti
