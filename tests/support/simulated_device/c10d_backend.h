#pragma once
// A c10d backend for the simulated device with the behaviour of NCCL's:
// - a collective is queued on a stream of the backend, after the work of the caller's current stream;
// - Work::wait() makes the current stream wait, not the host;
// - ranks must call the same collectives in the same order;
// - abort() ends the collectives of this rank only, which keep the memory as it is; so does the destructor without
//   shutdown().
// Ranks are threads of one process, each with its own device. The collectives run on the CPU.
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tutti::test::simulated {

/// The part of a group that its ranks share.
class SharedGroup {
 public:
  /// The tensors of a rank in a collective, as kernels see them.
  struct Part {
    at::Tensor output;
    at::Tensor input;
    std::vector<std::int64_t> sent{};  ///< elements to each rank, for an all-to-all
  };
  /// Computes the outputs of all ranks.
  using Compute = std::function<void(std::map<int, Part>& parts)>;

  explicit SharedGroup(int size) : size_(size) {}
  /// Blocks until all ranks have called it or this rank has aborted. The last rank computes. Throws if the ranks call
  /// different collectives.
  void run(int rank, const std::string& collective, Part part, const Compute& compute);
  void abort(int rank);

 private:
  const std::size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Part> parts_;
  std::string collective_;  // of the ranks in parts_
  std::uint64_t round_ = 0;
  std::set<int> aborted_;
};

/// The groups of a job, by name.
class SharedGroups {
 public:
  std::shared_ptr<SharedGroup> of(const std::string& group, int size);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<SharedGroup>> all_;
};

class Backend final : public c10d::Backend {
 public:
  Backend(std::shared_ptr<SharedGroup> shared, int rank, int size, int device);
  ~Backend() override;

  const std::string getBackendName() const override { return "simulated nccl"; }
  void shutdown() override;
  void abort() override;
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_lengths,
                        std::vector<std::int64_t>& input_lengths, const c10d::AllToAllOptions& options) override;

 private:
  WorkPtr queue(const std::string& collective, const at::Tensor& output, const at::Tensor& input,
                SharedGroup::Compute compute, std::vector<std::int64_t> sent = {});

  std::shared_ptr<SharedGroup> group_;
  c10::Stream stream_;
  bool ended_ = false;
};

}  // namespace tutti::test::simulated
