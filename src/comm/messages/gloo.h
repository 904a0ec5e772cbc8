#pragma once
// Messages over TCP by c10d's Gloo.
#include <chrono>
#include <memory>
#include <string>

#include "comm/meeting/rendezvous.h"
#include "comm/messages/transport.h"

namespace tutti::comm {

/// Where this rank listens: a network interface's name, or an address.
struct GlooPlace {
  std::string interface;
  std::string address;
};

/// Connects `size` ranks that met at `rendezvous`.
std::shared_ptr<Transport> connect_gloo(const Rendezvous& rendezvous, const GlooPlace& place, int rank, int size,
                                        std::chrono::milliseconds timeout);

}  // namespace tutti::comm
