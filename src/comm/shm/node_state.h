#pragma once
// What the ranks of a channel share on their node: memory of every rank, mapped by all, and how far each has come.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/backend/heartbeat_timeout.h"
#include "comm/backend/slow_operation_warning.h"
#include "comm/os/process.h"
#include "comm/shm/last_operation.h"
#include "comm/shm/segment.h"
#include "comm/shm/sequence_counter.h"
#include "comm/shm/stopped_timer.h"

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
    const auto index = static_cast<std::size_t>(rank);
    return stride_ > 0 ? segments_.front()->data() + index * stride_ : segments_[index]->data();
  }

 private:
  std::vector<std::shared_ptr<SharedSegment>> segments_;  // one for all, or by rank
  std::size_t stride_ = 0;                                // from rank to rank, in one for all
};

/// `bytes` for every rank. Every rank must call it; addresses travel by `backend`.bootstrap_all_gather(). Where it
/// cannot be done on some rank, it is done on none: `reason` then says why. Throws TransferError.
SharedMemory create_shared_memory(Backend& backend, const Operation& operation, std::size_t bytes, std::string& reason);

/// The mailbox for exchanges; larger ones go by messages.
inline constexpr std::size_t payload_slot_bytes = 8192;
inline constexpr std::uint32_t payload_slots = 16;

inline constexpr std::size_t failure_message_bytes = 4096;

/// One rank's part, in its segment. Zeros are a valid one. Each number has a cache line of its own.
struct RankState {
  alignas(64) SequenceCounter reductions_started;   // its versions are in its memory
  alignas(64) SequenceCounter reductions_finished;  // the results of its slice are in everyone's memory
  alignas(64) SequenceCounter all_gathers_posted;   // its bytes are in its mailbox
  alignas(64) SequenceCounter all_gathers_read;     // it has read everyone's
  alignas(64) std::atomic<std::uint64_t> all_gathers_decided[payload_slots];  // of rank 0: decide_all_gather()
  alignas(64) SequenceCounter published;  // node_broadcast.h says what these two mean
  alignas(64) SequenceCounter consumed;
  alignas(64) SequenceCounter chunks_posted;  // staged_collectives.h says what these three mean
  alignas(64) SequenceCounter chunks_reduced;
  alignas(64) SequenceCounter chunks_read;
  alignas(64) std::atomic<bool> closed;  // it gave the channel up
  std::atomic<bool> blocked;
  alignas(64) LastOperation last_operation;
  alignas(64) std::atomic<std::uint32_t> failure_message_length;  // 0: it has said nothing
  char failure_message[failure_message_bytes];                    // why it gave the channel up
  alignas(64) std::byte payload_slot[payload_slots][payload_slot_bytes];
};

/// Thread safe.
class NodeState {
 public:
  /// nullptr where the ranks cannot share memory; `reason` says why. Every rank must call it.
  static std::shared_ptr<NodeState> connect(Backend& backend, const Operation& operation, std::string& reason);
  ~NodeState() { close(); }
  NodeState(const NodeState&) = delete;
  NodeState& operator=(const NodeState&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(processes_.size()); }
  RankState& of(int rank) const { return *reinterpret_cast<RankState*>(memory_.of(rank)); }
  RankState& local() const { return of(rank_); }

  /// Blocks until every rank's `counter` has reached `value`. Throws TransferError naming those that have not, at the
  /// deadline, or when one died, gave up or is stopped for long. After a while the first of the ranks that wait logs
  /// for whom.
  void wait_for_all(SequenceCounter RankState::*counter, std::uint32_t value, const OperationDeadline& wait) const;

  /// The same for the first rank alone, without a line in the log: that rank tells whom it waits for itself.
  void wait_for_leader(SequenceCounter RankState::*counter, std::uint32_t value, const OperationDeadline& wait) const;

  /// Whether exchange `number` is made or given up: the first rank that says so decides for all of them, so that none
  /// goes on where another one failed. Returns whether it is made.
  bool decide_all_gather(std::uint32_t number, bool completed) const;
  /// Those that have given the channel up, once there are any; all others where none says so soon.
  std::vector<int> closed_ranks() const;

  /// What the ranks are called in lines of the log, where they are a group of others.
  void set_global_ranks(std::vector<int> global_ranks) { global_ranks_ = std::move(global_ranks); }

  /// See Backend.
  int spin_count() const { return spin_count_; }

  /// Whether `rank` has given the channel up or its process has ended.
  bool peer_exited(int rank) const {
    return of(rank).closed.load() || processes_[rank].state() == ProcessState::exited;
  }

  /// See Backend.
  bool set_blocked(bool blocked) const noexcept;

  void close() noexcept;

 private:
  NodeState(SharedMemory memory, int rank, const std::vector<SegmentAddress>& addresses);
  class PeerCheck;
  struct AwaitedCounter {
    SequenceCounter RankState::*counter;
    std::uint32_t value;
  };
  bool wait_for(int rank, const AwaitedCounter& awaited, const OperationDeadline& wait, PeerCheck& check) const;
  bool reached(int rank, const AwaitedCounter& awaited) const {
    return (of(rank).*awaited.counter).reached(awaited.value);
  }
  void log_slow_peers(const AwaitedCounter& awaited, const Operation& operation, std::chrono::seconds waited,
                      Deadline now) const;

  SharedMemory memory_;
  int rank_;
  std::vector<int> global_ranks_;
  std::chrono::milliseconds heartbeat_timeout_ = heartbeat_timeout();
  int queue_spin_count_;                 // on a channel's thread
  int spin_count_;                       // on the thread that wants the result
  std::vector<ProcessProbe> processes_;  // by rank
};

}  // namespace tutti::comm
