#pragma once
// The replicas of a module and their threads.
#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
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
  ReplicaGroup(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make, int replicas);

  int size() const { return static_cast<int>(replicas_.size()); }
  torch::nn::Module& module() const { return *module_; }
  torch::nn::Module& replica(int index) const { return *replicas_.at(static_cast<std::size_t>(index)).module; }

  /// Copies the module's parameters, buffers and training mode to the first `count` replicas.
  void refresh(int count) const;
  /// The parameters that require a gradient, each once.
  std::vector<SharedParameter> shared_parameters(int index) const;

  /// Runs `task(replica)` for the first `count` replicas in parallel, with this thread's grad mode and autocast, and
  /// waits for all. `doing` ("forward") describes the task. Throws an Error that names the first failed replica and
  /// `doing`.
  void run(int count, const std::string& doing, const std::function<void(int)>& task) const;

 private:
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    std::unique_ptr<comm::Worker> worker;
  };

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<Replica> replicas_;
};

}  // namespace tutti::data_parallel
