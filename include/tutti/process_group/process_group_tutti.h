#pragma once
// A c10d backend over a Communicator: what torch.distributed and c10d::ProcessGroup call, for CPU tensors.
//
// Every rank must make the same collective calls in the same order; one that does not is told so (MismatchError), and
// nothing is exchanged. Errors are tutti's (tutti/core/error.h): UsageError at the call, before anything is sent, all
// others from the Work. Tensors may be of any strides and of zero elements, and must stay untouched until the Work has
// ended. A Work's future ends with it, on the thread that ended it: no thread waits for it. Thread safe as long as all
// ranks agree on the order of calls.
//
// Not in <tutti/tutti.h>: c10d's headers take long to compile.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
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

/// A Communicator as a backend of c10d.
class ProcessGroupTutti final : public c10d::Backend {
 public:
  /// What a group may be given. Every rank gives the same.
  struct Options final : c10d::Backend::Options {
    /// `requested` as in CommunicatorOptions::backend, `deadline` that of operations that do not set their own.
    explicit Options(std::chrono::milliseconds deadline = kBackendDefaultTimeout, std::string requested = "auto");
    /// Replaces c10d's, where its release has one.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const;

    /// As CommunicatorOptions::backend.
    std::string communicator_backend;
    /// How long connecting may take: waiting for all ranks.
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  };

  /// Joins the group of `size` ranks that share `store`, as Communicator::connect() does. Every rank must call it.
  ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    const c10::intrusive_ptr<Options>& options = c10::make_intrusive<Options>());
  /// A group over a connection that stands already.
  ProcessGroupTutti(Communicator communicator, const c10::intrusive_ptr<Options>& options);
  ~ProcessGroupTutti() override;

  /// The ranks' connection, whose calls stand in one order with this group's collectives. duplicate() it for others.
  const Communicator& communicator() const { return communicator_; }

  /// "tutti".
  const std::string getBackendName() const override { return "tutti"; }
  /// Those that the group was made with; setTimeout() changes them.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// Of operations that are called from now on and set no deadline of their own.
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// How many collectives this rank has called; equal on all ranks that have called the same.
  std::uint64_t getSequenceNumberForGroup() override { return calls_; }

  /// As c10d passes them.
  using Tensors = std::vector<at::Tensor>;
  /// c10d's handle of an operation.
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// Combines the one tensor of each rank, in place: Communicator::all_reduce(). Sparse COO tensors are added; the call
  /// returns when all ranks have told how many elements theirs have.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// The same with several tensors, under one Work.
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// The root's tensor becomes the combination; those of others stay as they are.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  /// Every rank's tensor becomes that of the root.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  /// `outputs[0][r]` receives the input of rank r; all have its dtype and shape.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  /// `outputs[r][i]` receives input i of rank r.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  /// `output` receives all inputs, one behind the other.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  /// The same with several pairs, under one Work.
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  /// `outputs[0][r]` of the root receives the input of rank r; other ranks give no outputs.
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  /// `outputs[0]` receives `inputs[0][rank]` of the root; other ranks give no inputs.
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  /// `outputs[0]` receives the combination of all ranks' `inputs[0][rank]`.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  /// `output` receives this rank's part of the combination of all inputs.
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  /// The same with several pairs, under one Work.
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  /// Part r of `input` goes to rank r, along the first dimension; without sizes the parts are equal.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  /// `inputs[r]` goes to rank r, `outputs[r]` comes from it; they may differ in size.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  /// Ends when every rank has called it.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Messages stand in no order with collectives, and their tags are any numbers from 0 on. A send ends when the system
  // has taken the bytes. A TimeoutError or PeerError names the peer, and the group can still be used.
  /// To rank `peer` of the group.
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  /// From rank `peer`: the next message with that tag, of as many bytes.
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  /// From any rank; the Work's sourceRank() tells which.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  /// Communicator::monitored_barrier.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  /// Yes.
  bool supportsCoalescing() const override { return true; }
  /// What is called between the two ends with the Work of endCoalescing() too. Nothing is merged: each call starts.
  void startCoalescing() override;
  /// Ends when all that was called since startCoalescing() has ended.
  WorkPtr endCoalescing() override;

  /// Yes.
  bool supportsSplitting() const override { return true; }
  /// A group of `ranks`, which alone need to call it; null on others. It meets over this group's connection: `store` is
  /// not used.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  /// Ends what is under way with an error, here and on the other ranks; nothing can be called any more.
  void abort() override;
  /// Nothing can be called any more; what is under way goes on.
  void shutdown() override;

 private:
  struct Parts;
  WorkPtr start_work(Parts parts);
  WorkPtr start_message(process_group::Parts parts, const Tensors& shown);
  void add_to_coalescing(const c10d::Work& work);
  void require_not_shut_down(const char* what) const;
  CallOptions call_options(std::chrono::milliseconds timeout) const;

  c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> calls_ = 0;
  std::atomic<bool> shut_down_ = false;
  std::mutex coalescing_mutex_;
  std::optional<std::vector<Work>> coalescing_;  // since startCoalescing()
  std::map<std::string, int> splits_;            // how many of a name
  Communicator communicator_;
};

}  // namespace tutti
