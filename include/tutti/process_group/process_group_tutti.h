#pragma once
// A c10d backend over a Communicator: what torch.distributed and c10d::ProcessGroup call, for CPU tensors.
//
// Every rank must make the same collective calls in the same order; one that does not is told so (Divergence), and
// nothing is exchanged. Errors are tutti's (tutti/core/error.h): UsageError at the call, before anything is sent, all
// others from the Work. Tensors may be of any strides and of zero elements, and must stay untouched until the Work has
// ended. A Work's future ends with it, on the thread that ended it: no thread waits for it. Thread safe as long as all
// ranks agree on the order of calls.
//
// Not in <tutti/tutti.h>: c10d's headers take long to compile.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti {

class ProcessGroupTutti final : public c10d::Backend {
 public:
  /// What a group may be given. Every rank gives the same.
  struct Options final : c10d::Backend::Options {
    /// `wanted` as in CommunicatorOptions::engine, `deadline` that of operations that do not set their own.
    explicit Options(std::chrono::milliseconds deadline = kBackendDefaultTimeout, std::string wanted = "auto");
    /// Replaces c10d's, where its release has one.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const;

    std::string engine;
    /// How long connecting may take: waiting for all ranks.
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  };

  /// Joins the group of `size` ranks that share `store`, as Communicator::connect() does. Every rank must call it.
  ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    const c10::intrusive_ptr<Options>& options = c10::make_intrusive<Options>());
  ~ProcessGroupTutti() override;

  /// The ranks' connection, whose calls stand in one order with this group's collectives. duplicate() it for others.
  const Communicator& communicator() const { return communicator_; }

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// Of operations that are called from now on and set no deadline of their own.
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// How many collectives this rank has called; equal on all ranks that have called the same.
  std::uint64_t getSequenceNumberForGroup() override { return calls_; }

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  struct Parts;
  WorkPtr work_of(Parts parts);
  CallOptions call_options(std::chrono::milliseconds timeout) const;

  c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> calls_ = 0;
  Communicator communicator_;
};

}  // namespace tutti
