#pragma once
// The liveness data that local peers (local_peers.h) share: the last heartbeat, the replies to it and the status of all
// ranks of the job. It is in shared memory, so that a rank reads it without a system call and an update wakes all of
// them.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/backend/transfer_error.h"
#include "comm/health/heartbeat_schedule.h"
#include "comm/health/peer_status.h"

namespace tutti::comm {

/// Thread safe and without locks, so that a stopped or killed process blocks no other one.
class LivenessTable {
 public:
  /// How much memory it takes in a job of so many ranks; zeros are a valid table.
  static std::size_t bytes(int size);
  LivenessTable(std::shared_ptr<void> memory, int size);

  // Of a rank of the job. Marks are only ever added.
  static constexpr std::uint8_t suspected = 1;  ///< failed: missed heartbeats for the heartbeat timeout
  static constexpr std::uint8_t exited = 2;     ///< its process has exited without an exit announcement
  static constexpr std::uint8_t left = 4;       ///< has announced its exit
  static constexpr std::uint8_t inactive = 8;   ///< sends no heartbeats any more, announced or not; not published
  std::uint8_t marks(int rank) const { return of(rank).marks.load(); }
  void mark(int rank, std::uint8_t marks) { of(rank).marks.fetch_or(marks); }
  void mark(const PeerStatusUpdate& update);
  PeerStatusUpdate status() const;

  bool store_unreachable() const { return head().store_unreachable.load(); }
  void mark_store_unreachable() { head().store_unreachable.store(true); }

  /// Until when all look more often.
  Deadline fast_polling_until() const { return Deadline(Clock::duration(head().fast_polling_until.load())); }
  void poll_fast_until(Deadline end) { head().fast_polling_until.store(end.time_since_epoch().count()); }

  /// Claims the log line about `rank` (-1: about the store) for the caller; false if a local peer has claimed it.
  bool claim_log(int rank) { return !is_logged(rank).exchange(true); }
  /// Call it after a successful claim, when the state that the line reports has ended.
  void release_log(int rank) { is_logged(rank).store(false); }

  LastHeartbeat last_heartbeat() const;
  /// Whether the next one is `rank`'s to give.
  bool is_sender(int rank) const { return is_sender(rank, last_heartbeat()); }
  /// Claims the next heartbeat for `rank`, if it is due and no other rank has claimed it. Returns its number among
  /// those of the local peers.
  std::optional<std::uint32_t> claim_heartbeat(int rank, Clock::duration interval, Deadline now);
  /// Records the store's reply: for each rank of `peers` a number that changes with each heartbeat.
  void record_reply(const std::vector<int>& peers, const std::vector<std::int64_t>& heartbeats, Deadline now);
  Deadline last_reply() const { return Deadline(Clock::duration(head().last_reply.load())); }
  std::int64_t heartbeats(int rank) const { return of(rank).heartbeats.load(); }

  /// Wakes all local peers that sleep here.
  void wake_all();
  /// Another number after each wake_all().
  std::uint32_t generation() const { return head().generation.load(); }
  /// Sleeps while generation() is `seen`, until `end` at most; it may wake earlier.
  void sleep(std::uint32_t seen, Deadline end);

 private:
  struct alignas(64) Head {
    std::atomic<std::uint32_t> generation;
    std::atomic<std::uint32_t> heartbeats;      // of the local peers
    std::atomic<std::uint64_t> last_heartbeat;  // whose and when, in one number
    std::atomic<std::int64_t> last_reply;
    std::atomic<std::int64_t> fast_polling_until;
    std::atomic<bool> store_unreachable;
    std::atomic<bool> is_logged;
  };
  struct Rank {
    std::atomic<std::int64_t> heartbeats;
    std::atomic<std::uint8_t> marks;
    std::atomic<bool> is_logged;
  };

  bool is_sender(int rank, const LastHeartbeat& last) const {
    return last.rank < 0 || last.rank == rank || (marks(last.rank) & (inactive | exited)) != 0;
  }
  std::atomic<bool>& is_logged(int rank) { return rank < 0 ? head().is_logged : of(rank).is_logged; }
  Head& head() const { return *static_cast<Head*>(memory_.get()); }
  Rank& of(int rank) const { return reinterpret_cast<Rank*>(&head() + 1)[rank]; }

  std::shared_ptr<void> memory_;
  int size_;
};

}  // namespace tutti::comm
