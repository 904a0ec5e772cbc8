#pragma once
// The backend for the ranks of one node: collectives through shared memory.
#include <ATen/core/TensorBody.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/backend/forwarding_backend.h"
#include "comm/shm/in_place_all_reduce.h"
#include "comm/shm/node_state.h"
#include "comm/shm/staged_collectives.h"

namespace tutti::comm {

/// All-reduces of memory from allocate() run in place. Other tensors use staging buffers, and small all-gathers use the
/// payload slots. If the ranks cannot share memory, an operation uses `messages`, and rank 0 logs a warning.
class ShmBackend final : public ForwardingBackend {
 public:
  ShmBackend(const std::shared_ptr<Backend>& messages, SelectBackend for_groups, std::shared_ptr<NodeState> node);

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override;
  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                           std::span<const std::byte> input) override;

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override;
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override;
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override;
  void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    Backend::all_to_all(operation, output, input);  // in shared memory too
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override;
  void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                    const std::vector<at::Tensor>& inputs, std::size_t longest) override;
  bool peer_exited(int rank) const override { return node_->peer_exited(rank); }

  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override;
  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override;
  std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout) override;
  std::vector<std::byte> bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) override;
  std::shared_ptr<FailureBoard> failure_board() override { return node_; }
  void close() noexcept override;

  /// Like duplicate(), but the ranks exchange addresses through their shared memory. Returns null and sets `reason` if
  /// no more memory can be shared.
  std::shared_ptr<ShmBackend> duplicate_shm(const std::string& name, std::chrono::milliseconds timeout,
                                            std::string& reason);

  // For the hierarchical backend.
  const std::shared_ptr<NodeState>& node() const { return node_; }
  /// The location of `flat`; nullopt unless it is in memory from allocate().
  std::optional<ShmLocation> location_of(const at::Tensor& flat) const;
  /// The number of the next all-reduce in shared memory.
  std::uint32_t next_all_reduce() { return ++all_reduces_; }

 private:
  StagedCollectives* staged_collectives(const Operation& operation);

  SelectBackend for_groups_;
  std::shared_ptr<NodeState> node_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<const ShmAllocation>> allocations_;
  std::atomic<std::uint32_t> all_reduces_ = 0;
  std::mutex all_gather_mutex_;  // held while an all-gather waits for a slot, during which all-reduces must start
  std::uint32_t all_gathers_ = 0;
  std::unique_ptr<StagedCollectives> staged_;  // used by the communicator's queue thread only
  bool staging_unavailable_ = false;
};

/// The operation under which ranks set up shared memory, before any call has a number.
Operation shm_setup_operation(std::chrono::milliseconds timeout);

/// Creates the shared memory backend for the ranks of `messages`, which must be on one node. Every rank must call it.
/// Returns null and sets `reason` if the ranks cannot share memory. `for_groups` selects the backends of groups
/// (Backend::split). Throws TransferError.
std::shared_ptr<ShmBackend> make_shm_backend(const std::shared_ptr<Backend>& messages, SelectBackend for_groups,
                                             std::chrono::milliseconds timeout, std::string& reason);

}  // namespace tutti::comm
