#pragma once
// A c10d backend over a Communicator, for tensors in CPU memory and on devices (see Communicator).
// torch.distributed and c10d::ProcessGroup call it.
//
// Every rank must make the same collective calls in the same order. A mismatch throws MismatchError on all ranks before
// they exchange data. Errors are those of tutti/core/error.h: a call throws UsageError before it sends anything, the
// Work throws all others. Tensors may have any strides and zero elements. The caller must not access them until the
// Work has completed. A Work's future completes with it, on the thread that completes the operation; no thread waits
// for it. Thread safe if the order of calls is the same on all ranks.
//
// <tutti/tutti.h> does not include this header, because c10d's headers take long to compile.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti {

namespace process_group {
struct Parts;
}

/// A Communicator as a c10d backend.
class ProcessGroupTutti final : public c10d::Backend {
 public:
  /// Options of a group. Every rank must pass the same values.
  struct Options final : c10d::Backend::Options {
    /// `deadline`: the timeout of operations that do not set their own. `requested`: see communicator_backend.
    explicit Options(std::chrono::milliseconds deadline = kBackendDefaultTimeout, std::string requested = "auto");
    /// Overrides c10d's clone() in releases that have it.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const;

    /// The backend of the communicator: see CommunicatorOptions::backend.
    std::string communicator_backend;
    /// The timeout of connecting: waiting for all ranks.
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
    // With c10d's `enable_reconfigure` (LibTorch 2.15), the constructor connects to no rank: reconfigure() does.
  };

  /// Joins the group of `size` ranks that share `store`, as Communicator::connect() does. Every rank must call it.
  ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    const c10::intrusive_ptr<Options>& options = c10::make_intrusive<Options>());
  /// Makes a group over an existing communicator.
  ProcessGroupTutti(Communicator communicator, const c10::intrusive_ptr<Options>& options);
  ~ProcessGroupTutti() override;

  /// The communicator of the group, until the next reconfigure(). Its calls share one sequence with the group's
  /// collectives; duplicate() it for other calls.
  const Communicator& communicator() const;

  /// Returns "tutti".
  const std::string getBackendName() const override { return "tutti"; }
  /// The options of the group; setTimeout() changes their timeout.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// Sets the timeout of later operations that do not set their own. Throws UsageError unless it is positive.
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// The number of collectives that this rank has called.
  std::uint64_t getSequenceNumberForGroup() override { return calls_; }

  /// The type in which c10d passes tensors.
  using Tensors = std::vector<at::Tensor>;
  /// A handle of an operation in flight.
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// Reduces the one tensor of each rank, in place: Communicator::all_reduce(). For sparse COO tensors the only
  /// reduction is SUM, and the call blocks until all ranks have exchanged their numbers of elements.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// allreduce() of several tensors with one Work.
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// Reduces the tensors into the root's tensor. The tensors of other ranks do not change.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  /// Copies the root's tensor to the tensor of every rank.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  /// Writes the input of rank r to `outputs[0][r]`. All have one dtype and shape.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  /// Writes input i of rank r to `outputs[r][i]`.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  /// Writes all inputs to `output`, concatenated in rank order.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  /// _allgather_base() of several pairs with one Work.
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  /// Writes the input of rank r to `outputs[0][r]` of the root. Other ranks pass no outputs.
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  /// Writes `inputs[0][r]` of the root to `outputs[0]` of rank r. Other ranks pass no inputs.
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  /// Reduces `inputs[0][r]` over all ranks and writes the result to `outputs[0]` of rank r.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  /// Reduces `input` over all ranks and writes this rank's part of the result to `output`.
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  /// _reduce_scatter_base() of several pairs with one Work.
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  /// Sends part r of `input` along the first dimension to rank r. Empty split sizes mean equal parts.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  /// Sends `inputs[r]` to rank r and receives `outputs[r]` from it. The parts may differ in size.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  /// Completes when every rank has called it.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Point-to-point messages have no order relative to collectives. A tag is any number from 0. A send completes when
  // the operating system has accepted the bytes. A TimeoutError or PeerError names the peer; the group stays usable.
  /// Sends the one tensor to rank `peer` of the group.
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  /// Receives the next message of rank `peer` with this tag. It must have as many bytes as the tensor.
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  /// Receives from any rank. The Work's sourceRank() returns that rank.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  /// See Communicator::monitored_barrier.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  /// Returns true.
  bool supportsCoalescing() const override { return true; }
  /// Adds later operations to the Work of endCoalescing(). Each operation still starts at its call; none are merged.
  /// If the last startCoalescing() has no endCoalescing(), its operations continue and are not part of that Work.
  void startCoalescing() override;
  /// Returns a Work that completes with all operations called since startCoalescing(). Throws UsageError without one.
  WorkPtr endCoalescing() override;

  /// Returns true.
  bool supportsSplitting() const override { return true; }
  /// Returns a group of `ranks`; null on other ranks. Only `ranks` must call it. They connect through this group, so
  /// `store` is unused.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  /// Returns true: reconfigure() gives the group other ranks, for example after one has failed.
  bool supportsReconfigure() const override {
    return true;
  }
  /// Returns false before the first reconfigure() of a group with Options::enable_reconfigure.
  bool isInitialized() override {
    return is_connected_;
  }
  /// This rank's handle for the next reconfigure(): an address at which this rank listens from now on and, unless the
  /// job has a secret, a key. Equal until that call. A process that reads the handles can join the group as one of its
  /// ranks: exchange them in private.
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  /// Replaces the ranks of the group. Each rank of the new group must call it with the same uuid, new to this group,
  /// and the handles of all of them; other ranks keep the old group, which they can no longer use. The rank of the
  /// first handle runs the new coordinator, so no rank and no store of the old group is needed. In an unordered set the
  /// ranks of the old group come first, in their order. The group keeps its options; `hints` have no meaning.
  /// Operations in flight fail before. Groups split from this one, and copies of its communicator, remain those of the
  /// old ranks. Waits for the ranks of the new group for the timeout in `options`, without one for
  /// Options::connect_timeout. Returns a completed Work when all have joined. Throws UsageError (the handle of this
  /// rank is missing, the ranks disagree), TimeoutError (the named ranks did not join) and PeerError; rank(), size()
  /// and an old group without operations in flight then stay, and the next attempt needs new handles. No other call may
  /// run meanwhile.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif

  /// Aborts the group: operations in flight end with an error, on this rank and on the others, and later calls throw.
  void abort() override;
  /// Makes later calls throw UsageError. Operations in flight continue.
  void shutdown() override;

 private:
  struct Parts;
  struct Generation;
  ProcessGroupTutti(Communicator communicator, const c10::intrusive_ptr<Options>& options, std::string store_host);
  WorkPtr start_work(Parts parts);
  WorkPtr start_message(process_group::Parts parts, const Tensors& shown);
  void add_to_coalescing(const c10d::Work& work);
  void require_not_shut_down(const char* what) const;
  void end_calls_in_flight(const std::string& reason);
  CallOptions call_options(std::chrono::milliseconds timeout) const;

  c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> calls_ = 0;
  std::atomic<bool> shut_down_ = false;
  std::mutex coalescing_mutex_;
  std::optional<std::vector<Work>> coalescing_;  // operations since startCoalescing()
  std::map<std::string, int> splits_;            // number of splits by name
  Work last_collective_;                         // the earlier ones have completed when it has
  std::unique_ptr<Generation> generation_;       // what reconfigure() needs
  std::atomic<bool> is_connected_ = true;
  Communicator communicator_;
};

}  // namespace tutti
