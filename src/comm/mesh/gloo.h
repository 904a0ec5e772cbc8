#pragma once
// Connections over TCP by c10d's Gloo.
#include <chrono>
#include <memory>
#include <string>

#include "comm/meeting/rendezvous.h"
#include "comm/mesh/connections.h"

namespace tutti::comm {

/// Where this rank listens: a network interface's name, or an address.
struct GlooPlace {
  std::string interface;
  std::string address;

  std::string describe() const { return interface.empty() ? address : "interface " + interface; }
};

/// Listens from now on, at `place`. The other ranks find it through `rendezvous`, which is new. `timeout` is for
/// connecting. Throws where it cannot listen.
std::unique_ptr<Connections> make_gloo_connections(const Rendezvous& rendezvous, const GlooPlace& place, int rank,
                                                   int size, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
