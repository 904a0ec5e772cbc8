#pragma once
// Connections over TCP by c10d's Gloo.
#include <chrono>
#include <memory>
#include <string>

#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/gloo/connections.h"

namespace tutti::comm {

/// Where this rank listens: a network interface's name, or an address.
struct BindAddress {
  std::string interface;
  std::string address;

  std::string describe() const { return interface.empty() ? address : "interface " + interface; }
};

/// Listens from now on, at `bind_address`. The other ranks find it through `rendezvous`, which is new. `timeout` is for
/// connecting. Throws where it cannot listen.
std::unique_ptr<Connections> make_gloo_connections(const Rendezvous& rendezvous, const BindAddress& bind_address,
                                                   int rank, int size, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
