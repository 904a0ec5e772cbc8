#pragma once
// Messages over TCP by c10d's Gloo.
#include <chrono>
#include <memory>
#include <string>

#include "comm/meeting/pulse.h"
#include "comm/meeting/rendezvous.h"
#include "comm/messages/transport.h"

namespace tutti::comm {

/// Where this rank listens: a network interface's name, or an address.
struct GlooPlace {
  std::string interface;
  std::string address;
};

/// Messages among the ranks of `pulse`, which met at `rendezvous`. They connect with the first one, which every rank
/// must send or receive, or when Transport::connect() is called.
std::shared_ptr<Transport> make_gloo_transport(const Rendezvous& rendezvous, const GlooPlace& place, int rank,
                                               GroupPulse pulse, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
