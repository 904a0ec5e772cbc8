#pragma once
// Connections over TCP by c10d's Gloo.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

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

/// c10d's Gloo backend for the collectives of the group `group`, whose ranks must all call it.
c10::intrusive_ptr<c10d::Backend> make_c10d_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group,
                                                 const BindAddress& bind_address, int rank, int size,
                                                 std::chrono::milliseconds timeout);

}  // namespace tutti::comm
