#pragma once
// Messages from rank to rank that stand in no order with collectives: a thread and a socket of its own, for all groups
// of a job. Nothing is there before the first message is asked for; connections are made by those who send.
//
// A message is read as it comes, into the memory of the receive that waits for it, or into memory of its own until one
// does: so it never waits for another one, and a send ends when the system has taken its bytes.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/p2p/request.h"
#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

/// Thread safe.
class P2pEndpoint {
 public:
  /// `host`: the numeric address at which the other ranks reach this one. Throws PeerError where it cannot listen.
  P2pEndpoint(const Rendezvous& rendezvous, int rank, const std::string& host);
  /// Sends what is to be sent, until its deadlines; not where an exception is the reason.
  ~P2pEndpoint();
  P2pEndpoint(const P2pEndpoint&) = delete;
  P2pEndpoint& operator=(const P2pEndpoint&) = delete;

  /// To rank `peer` of the job.
  void send(int peer, const MessageHeader& header, RequestPtr request);
  void receive(std::uint64_t group, RequestPtr request);
  /// Receives of the group end with `failure`, those to come too, where asked for also sends that have not begun, and
  /// the other ranks (of the job: `members`) that were sent something hear that nothing more will come.
  void close_group(std::uint64_t group, int source, const std::vector<int>& members, std::exception_ptr failure,
                   bool cancel_sends);

 private:
  class EventLoop;
  std::shared_ptr<EventLoop> loop_;
};

}  // namespace tutti::comm
