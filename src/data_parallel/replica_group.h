#pragma once
// The replicas of a module and their threads.
#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/worker.h"
#include "tutti/data_parallel/data_parallel.h"

namespace tutti::data_parallel {

/// A parameter of the module and its leaf in a replica.
struct SharedParameter {
  at::Tensor module_parameter;
  at::Tensor replica_parameter;
};

class ReplicaGroup {
 public:
  /// Throws UsageError if a replica differs from the module in structure.
  ReplicaGroup(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make, const DataParallelOptions& options);

  int size() const { return static_cast<int>(replicas_.size()); }
  torch::nn::Module& module() const { return *module_; }
  torch::nn::Module& replica(int index) const { return *replicas_.at(static_cast<std::size_t>(index)).module; }

  /// The device of replica `index`; nullopt if all replicas are on the module's device.
  std::optional<at::Device> device(int index) const {
    return devices_.empty() ? std::nullopt : std::optional(devices_[static_cast<std::size_t>(index)]);
  }

  /// Copies the module's parameters, buffers and training mode to the first `count` replicas.
  void refresh(int count);
  /// True if the replicas of the last refresh() have tensors on accelerators.
  bool on_accelerators() const { return !accelerators_.empty(); }
  /// The calling thread's current streams on these accelerators.
  std::vector<c10::Stream> current_streams() const;
  /// The parameters that require a gradient, each once.
  std::vector<SharedParameter> shared_parameters(int index) const;

  /// Runs `task(replica)` for the first `count` replicas in parallel, with this thread's grad mode, autocast and
  /// current streams, and waits for all. `doing` ("forward") describes the task. Throws an Error that names the first
  /// failed replica and `doing`.
  void run(int count, const std::string& doing, const std::function<void(int)>& task) const;

 private:
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    std::unique_ptr<comm::Worker> worker;
    std::vector<std::uint64_t> buffer_versions{};  ///< of each buffer and the module's, after the last refresh()
  };

  void add_accelerator(at::Device device);
  /// The current device of replica `index`'s thread; nullopt without accelerators.
  std::optional<at::Device> accelerator(int index) const;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<at::Device> accelerators_;  ///< of the last refresh()
  std::vector<at::Device> devices_;       ///< of the replicas; empty if all are on the module's device
  std::vector<Replica> replicas_;
};

}  // namespace tutti::data_parallel
