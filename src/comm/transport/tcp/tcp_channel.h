#pragma once
// The messages of the collectives of one group of ranks, and the waits for them.
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/health/heartbeat_monitor.h"
#include "comm/transport/tcp/endpoint.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// Thread safe.
class TcpChannel : public std::enable_shared_from_this<TcpChannel> {
 public:
  /// `id` is equal on all members. This rank is `own_rank` in the job.
  TcpChannel(std::shared_ptr<Endpoint> endpoint, std::uint64_t id, GroupHealth health, int own_rank);
  /// Tells the other members.
  ~TcpChannel();
  TcpChannel(const TcpChannel&) = delete;
  TcpChannel& operator=(const TcpChannel&) = delete;

  /// `member` by its rank in the group. Throws PeerError.
  std::unique_ptr<Transfer> post(bool is_send, int member, Tag tag, const Buffer& buffer);
  /// Ends all transfers, here and on the other members.
  void close() noexcept;

 private:
  class TcpMessage;
  class TcpTransfer;

  void wait(TcpMessage& message, int member, std::uint64_t operation, Deadline deadline);
  [[noreturn]] void throw_failure(const TcpMessage& message, const Outcome& outcome, int member);
  void log_slow_peer(int member, std::uint64_t operation, std::chrono::seconds waited) const;

  const std::shared_ptr<Endpoint> endpoint_;
  const std::uint64_t id_;
  const GroupHealth health_;
  const int own_rank_;

  std::mutex mutex_;
  std::vector<int> late_members_;  // members for which a wait has timed out
  std::set<TcpMessage*> waiting_;
  std::shared_ptr<void> failure_subscription_;  // destroyed first: its callback uses the others
};

}  // namespace tutti::comm
