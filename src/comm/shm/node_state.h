#pragma once
// The state that the ranks of a communicator share on their node: one block of memory per rank, mapped by all ranks,
// with the sequence counters and messages of that rank.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/backend/slow_operation_warning.h"
#include "comm/os/process.h"
#include "comm/shm/last_operation.h"
#include "comm/shm/segment.h"
#include "comm/shm/sequence_counter.h"

namespace tutti::comm {

/// One block of memory per rank, mapped by all ranks. Blocks smaller than a huge page are in one segment, which rank 0
/// creates: the cost of mapping then grows with the number of ranks, not with the number of pairs. Larger blocks are
/// segments of their own, which the ranks create in parallel.
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
  std::vector<std::shared_ptr<SharedSegment>> segments_;  // one segment, or one per rank
  std::size_t stride_ = 0;                                // bytes from rank to rank in one segment, else 0
};

/// Creates and maps `bytes` of shared memory for every rank. Every rank must call it. Addresses are exchanged with
/// `backend`.bootstrap_all_gather(). If it fails on some rank, the result is empty on all ranks and `reason` is set.
/// Throws TransferError.
SharedMemory create_shared_memory(Backend& backend, const Operation& operation, std::size_t bytes, std::string& reason);

/// The memory of one GradientCommunicator::allocate(). Offsets are equal on all ranks.
struct ShmAllocation {
  SharedMemory memory;
  std::byte* begin = nullptr;  // this rank's
  std::size_t bytes = 0;

  bool contains(const std::byte* data, std::size_t size) const { return data >= begin && data + size <= begin + bytes; }
};

/// The location of a tensor in an allocation.
struct ShmLocation {
  std::shared_ptr<const ShmAllocation> allocation;
  std::size_t offset = 0;

  std::byte* of(int rank) const { return allocation->memory.of(rank) + offset; }
};

/// The slots for small all-gathers. Larger payloads are sent as messages.
inline constexpr std::size_t payload_slot_bytes = 8192;
inline constexpr std::uint32_t payload_slots = 16;

inline constexpr std::size_t failure_message_bytes = 4096;

/// The state of one rank, in its block. Zero-initialized memory is a valid state. Each counter has a cache line of its
/// own.
struct RankState {
  alignas(64) SequenceCounter reductions_started;   // the rank's contributions are in its memory
  alignas(64) SequenceCounter reductions_finished;  // the results of the rank's shard are in all ranks' memory
  alignas(64) SequenceCounter all_gathers_posted;   // the rank's bytes are in its payload slot
  alignas(64) SequenceCounter all_gathers_read;     // the rank has read all ranks' payload slots
  alignas(64) std::atomic<std::uint64_t> all_gathers_decided[payload_slots];  // rank 0's only; see decide_all_gather()
  alignas(64) SequenceCounter published;                                      // see node_broadcast.h
  alignas(64) SequenceCounter consumed;
  alignas(64) SequenceCounter chunks_posted;  // see staged_collectives.h
  alignas(64) SequenceCounter chunks_reduced;
  alignas(64) SequenceCounter chunks_read;
  alignas(64) std::atomic<bool> closed;  // the rank has closed the communicator
  alignas(64) LastOperation last_operation;
  alignas(64) std::atomic<std::uint32_t> failure_message_length;  // 0 before the rank publishes a failure report
  char failure_message[failure_message_bytes];                    // the rank's failure report
  alignas(64) std::byte payload_slot[payload_slots][payload_slot_bytes];
};

/// Thread safe.
class NodeState final : public FailureBoard {
 public:
  /// Returns nullptr and sets `reason` if the ranks cannot share memory. Every rank must call it. `health`: of the same
  /// ranks, as the coordinator reports them.
  static std::shared_ptr<NodeState> connect(Backend& backend, std::shared_ptr<const PeerHealth> health,
                                            const Operation& operation, std::string& reason);
  ~NodeState() override { close(); }
  NodeState(const NodeState&) = delete;
  NodeState& operator=(const NodeState&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(processes_.size()); }
  RankState& of(int rank) const { return *reinterpret_cast<RankState*>(memory_.of(rank)); }
  RankState& local() const { return of(rank_); }

  /// Blocks until every rank's `counter` has reached `value`. Throws TransferError, which names the ranks that have not
  /// reached it, at the deadline, or if a rank exited or closed the communicator; and as PeerHealth does. The lowest
  /// waiting rank logs slow-operation warnings.
  void wait_for_all(SequenceCounter RankState::*counter, std::uint32_t value, const OperationDeadline& wait) const;

  /// The same for rank 0 only, and without warnings: rank 0 logs for which ranks it waits itself.
  void wait_for_leader(SequenceCounter RankState::*counter, std::uint32_t value, const OperationDeadline& wait) const;

  /// Decides for all ranks whether small all-gather `number` completed or is aborted. The first call of any rank
  /// decides, so that no rank continues after another rank has failed in it. Returns true if it completed.
  bool decide_all_gather(std::uint32_t number, bool completed) const;
  /// The ranks that have closed the communicator. Blocks until there is one; after 2 s without any, returns all other
  /// ranks.
  std::vector<int> closed_ranks();

  /// Sets the ranks of the operation's group, if they differ from the ranks of this node.
  void set_global_ranks(std::vector<int> global_ranks) { global_ranks_ = std::move(global_ranks); }

  /// See BackendTraits.
  int spin_count() const { return spin_count_; }

  /// True if `rank` has closed the communicator or its process has exited. A process that has called exec() still runs,
  /// but has closed its connection to the coordinator.
  bool peer_exited(int rank) const {
    return of(rank).closed.load() || processes_[rank].has_exited() || health_->peer_exited(rank);
  }

  void close() noexcept;

  // The failure board. A report stays readable while any process maps the memory, even after the process of the report
  // has exited. A rank publishes one report, before it closes the communicator.
  void publish(int rank, const std::string& text) override;
  std::vector<std::optional<std::string>> read() override;
  std::vector<int> exited_ranks() override;

 private:
  NodeState(SharedMemory memory, int rank, const std::vector<SegmentAddress>& addresses,
            std::shared_ptr<const PeerHealth> health);
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
  int global_rank(int rank) const { return global_ranks_.empty() ? rank : global_ranks_[rank]; }

  SharedMemory memory_;
  int rank_;
  std::vector<int> global_ranks_;
  std::shared_ptr<const PeerHealth> health_;
  int queue_spin_count_;                 // on the communicator's queue thread
  int spin_count_;                       // on the thread that waits for the result
  std::vector<ProcessProbe> processes_;  // by rank
};

}  // namespace tutti::comm
