#pragma once
// What the ranks of a channel share on their node: memory of every rank, mapped by all, and how far each has come.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/engine.h"
#include "comm/engine/patience.h"
#include "comm/engine/process.h"
#include "comm/engine/waiting_line.h"
#include "comm/shared/last_call.h"
#include "comm/shared/progress.h"
#include "comm/shared/segment.h"
#include "comm/shared/stopped.h"

namespace tutti::comm {

/// Memory of every rank, mapped by all. Parts that are smaller than a huge page lie in one segment, which the first
/// rank makes: what it takes to map them grows with the number of ranks then, not with the number of pairs. Larger ones
/// are made by their ranks, at the same time.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(std::vector<std::shared_ptr<SharedSegment>> segments, std::size_t stride)
      : segments_(std::move(segments)), stride_(stride) {}

  bool empty() const { return segments_.empty(); }
  std::byte* of(int rank) const {
    const auto place = static_cast<std::size_t>(rank);
    return stride_ > 0 ? segments_.front()->data() + place * stride_ : segments_[place]->data();
  }

 private:
  std::vector<std::shared_ptr<SharedSegment>> segments_;  // one for all, or by rank
  std::size_t stride_ = 0;                                // from rank to rank, in one for all
};

/// `bytes` for every rank. Every rank must call it; addresses travel by `engine`.meet(). Where it cannot be done on
/// some rank, it is done on none: `reason` then says why. Throws TransferError.
SharedMemory share_memory(Engine& engine, const Operation& operation, std::size_t bytes, std::string& reason);

/// The mailbox for exchanges; larger ones go by messages.
inline constexpr std::size_t mailbox_bytes = 8192;
inline constexpr std::uint32_t mailboxes = 16;

inline constexpr std::size_t last_word_bytes = 4096;

/// One rank's part, in its segment. Zeros are a valid one. Each number has a cache line of its own.
struct SharedRank {
  alignas(64) SharedProgress sums_started;      // its versions are in its memory
  alignas(64) SharedProgress sums_reduced;      // the results of its slice are in everyone's memory
  alignas(64) SharedProgress exchanges_posted;  // its bytes are in its mailbox
  alignas(64) SharedProgress exchanges_read;    // it has read everyone's
  alignas(64) std::atomic<std::uint64_t> exchanges_settled[mailboxes];  // of rank 0: settle_exchange()
  alignas(64) SharedProgress handed_out;                                // hand_out.h says what these two mean
  alignas(64) SharedProgress taken;
  alignas(64) SharedProgress chunks_posted;  // stage.h says what these three mean
  alignas(64) SharedProgress chunks_reduced;
  alignas(64) SharedProgress chunks_read;
  alignas(64) std::atomic<bool> closed;  // it gave the channel up
  std::atomic<bool> stands_still;
  alignas(64) LastCall last_call;
  alignas(64) std::atomic<std::uint32_t> last_word_length;  // 0: it has said nothing
  char last_word[last_word_bytes];                          // why it gave the channel up
  alignas(64) std::byte mailbox[mailboxes][mailbox_bytes];
};

/// Thread safe.
class SharedNode {
 public:
  /// nullptr where the ranks cannot share memory; `reason` says why. Every rank must call it.
  static std::shared_ptr<SharedNode> connect(Engine& engine, const Operation& operation, std::string& reason);
  ~SharedNode() { close(); }
  SharedNode(const SharedNode&) = delete;
  SharedNode& operator=(const SharedNode&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(processes_.size()); }
  SharedRank& of(int rank) const { return *reinterpret_cast<SharedRank*>(memory_.of(rank)); }
  SharedRank& own() const { return of(rank_); }

  /// Blocks until every rank's `progress` has reached `value`. Throws TransferError naming those that have not, at the
  /// deadline, or when one died, gave up or is stopped for long. After a while the first of the ranks that wait logs
  /// for whom.
  void wait_for_all(SharedProgress SharedRank::*progress, std::uint32_t value, const OperationWait& wait) const;

  /// The same for the first rank alone, without a line in the log: that rank tells whom it waits for itself.
  void wait_for_first(SharedProgress SharedRank::*progress, std::uint32_t value, const OperationWait& wait) const;

  /// Whether exchange `number` is made or given up: the first rank that says so decides for all of them, so that none
  /// goes on where another one failed. Returns whether it is made.
  bool settle_exchange(std::uint32_t number, bool made) const;
  /// Those that have given the channel up, once there are any; all others where none says so soon.
  std::vector<int> who_gave_up() const;

  /// What the ranks are called in lines of the log, where they are a group of others.
  void call_ranks(std::vector<int> names) { names_ = std::move(names); }

  /// See Engine.
  int looks_before_sleep() const { return looks_; }

  /// Whether `rank` has given the channel up or its process has ended.
  bool is_gone(int rank) const { return of(rank).closed.load() || processes_[rank].state() == ProcessState::ended; }

  /// See Engine.
  bool stands_still(bool still) const noexcept;

  void close() noexcept;

 private:
  SharedNode(SharedMemory memory, int rank, const std::vector<SegmentAddress>& addresses);
  class Look;
  struct Awaited {
    SharedProgress SharedRank::*progress;
    std::uint32_t value;
  };
  bool wait_for(int rank, const Awaited& awaited, const OperationWait& wait, Look& look) const;
  bool reached(int rank, const Awaited& awaited) const { return (of(rank).*awaited.progress).reached(awaited.value); }
  void say_who_is_awaited(const Awaited& awaited, const Operation& operation, std::chrono::seconds waited,
                          Deadline now) const;

  SharedMemory memory_;
  int rank_;
  std::vector<int> names_;
  std::chrono::milliseconds stopped_timeout_ = stopped_timeout();
  int spins_;                            // on a channel's thread
  int looks_;                            // on the thread that wants the result
  std::vector<ProcessWatch> processes_;  // by rank
};

}  // namespace tutti::comm
