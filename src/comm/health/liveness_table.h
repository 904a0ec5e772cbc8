#pragma once
// What the ranks of a crew (local_peers.h) know together: who gave the last sign of life, what came of it, and what is
// told of ranks of the job. It lies in memory that they share, so that a rank reads it for nothing and news wake all of
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

/// Thread safe. Nothing in it is locked: a process that is stopped or killed meanwhile keeps nobody waiting.
class LivenessTable {
 public:
  /// How much memory it takes in a job of so many ranks; zeros are a valid board.
  static std::size_t bytes(int size);
  LivenessTable(std::shared_ptr<void> memory, int size);

  // Of a rank of the job. Marks are only ever added.
  static constexpr std::uint8_t suspected = 1;  ///< given up: not heard of for long
  static constexpr std::uint8_t exited = 2;     ///< its process has ended without a good-bye
  static constexpr std::uint8_t left = 4;       ///< has said good-bye
  static constexpr std::uint8_t inactive = 8;  ///< gives no sign of life any more, with or without a good-bye; not told
  std::uint8_t marks(int rank) const { return of(rank).marks.load(); }
  void mark(int rank, std::uint8_t marks) { of(rank).marks.fetch_or(marks); }
  void mark(const PeerStatusUpdate& update);
  PeerStatusUpdate status() const;

  bool store_unreachable() const { return head().store_unreachable.load(); }
  void mark_store_unreachable() { head().store_unreachable.store(true); }

  /// Until when all look more often.
  Deadline fast_polling_until() const { return Deadline(Clock::duration(head().fast_polling_until.load())); }
  void poll_fast_until(Deadline end) { head().fast_polling_until.store(end.time_since_epoch().count()); }

  LastHeartbeat last_heartbeat() const;
  /// Whether the next one is `rank`'s to give.
  bool is_sender(int rank) const { return is_sender(rank, last_heartbeat()); }
  /// Takes it on `rank` to give a sign of life now, where that is due and nobody else does. Returns how many the crew
  /// has given with this one.
  std::optional<std::uint32_t> claim_heartbeat(int rank, Clock::duration interval, Deadline now);
  /// What the store said: of each rank of `peers` another number for each sign of life.
  void record_reply(const std::vector<int>& peers, const std::vector<std::int64_t>& heartbeats, Deadline now);
  Deadline last_reply() const { return Deadline(Clock::duration(head().last_reply.load())); }
  std::int64_t heartbeats(int rank) const { return of(rank).heartbeats.load(); }

  /// Wakes all of the crew that sleep here.
  void wake_all();
  /// Another number after each wake_all().
  std::uint32_t generation() const { return head().generation.load(); }
  /// Sleeps while generation() is `seen`, until `end` at most; it may wake earlier.
  void sleep(std::uint32_t seen, Deadline end);

 private:
  struct alignas(64) Head {
    std::atomic<std::uint32_t> generation;
    std::atomic<std::uint32_t> heartbeats;      // of the crew
    std::atomic<std::uint64_t> last_heartbeat;  // whose and when, in one number
    std::atomic<std::int64_t> last_reply;
    std::atomic<std::int64_t> fast_polling_until;
    std::atomic<bool> store_unreachable;
  };
  struct Rank {
    std::atomic<std::int64_t> heartbeats;
    std::atomic<std::uint8_t> marks;
  };

  bool is_sender(int rank, const LastHeartbeat& last) const {
    return last.rank < 0 || last.rank == rank || (marks(last.rank) & (inactive | exited)) != 0;
  }
  Head& head() const { return *static_cast<Head*>(memory_.get()); }
  Rank& of(int rank) const { return reinterpret_cast<Rank*>(&head() + 1)[rank]; }

  std::shared_ptr<void> memory_;
  int size_;
};

}  // namespace tutti::comm
