#pragma once
// Combines the state other than parameters, as StateSync says: buffers, and the inner optimizer's tensors.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "local_sgd/trained_parameters.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace torch::optim {
class Optimizer;
}

namespace tutti::local_sgd {

class ExtraState {
 public:
  /// Throws UsageError if StateSync asks for a combination that this model or optimizer does not support.
  ExtraState(const std::vector<NamedParameter>& buffers, std::shared_ptr<torch::optim::Optimizer> optimizer,
             const TrainedParameters& parameters, const StateSync& state_sync);

  /// Replaces a flat vector by its weighted mean. `check` must be equal on all ranks.
  using Mean = std::function<void(const at::Tensor& flat, std::uint64_t check)>;
  // The three run in this order. read() and write() run on the training thread.

  /// Copies tensors on accelerators to CPU memory. Waits for each device once.
  void read(const Communicator& group);
  /// Combines all state over `group`; rank 0 of `group` is the source of a broadcast. Runs on the communicator's
  /// thread. Returns the bytes sent without those of `mean`.
  std::int64_t combine(const Communicator& group, const Mean& mean) const;
  /// Copies what has changed back to accelerators, without a wait.
  void write();

 private:
  /// The tensors that combine() reads and writes, all in CPU memory.
  struct HostTensors {
    std::vector<at::Tensor> floating;
    std::vector<at::Tensor> integer;
    std::vector<at::Tensor> momentum;
    std::uint64_t momentum_check = 0;
  };
  /// A tensor on an accelerator and its copy in CPU memory.
  struct Staged {
    at::Tensor tensor;
    at::Tensor copy;
    std::int64_t version;  ///< of the copy when it was made
  };

  std::vector<at::Tensor> momentum(std::uint64_t& check) const;
  static void mean_of(const std::vector<at::Tensor>& tensors, at::ScalarType dtype, std::uint64_t check,
                      const Mean& mean);

  std::vector<at::Tensor> floating_;  ///< buffers
  std::vector<at::Tensor> integer_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;  ///< null if its state stays local
  std::vector<std::string> names_;
  HostTensors on_host_;
  std::vector<Staged> staged_;
  StateSync state_sync_;
  bool any_double_ = false;
};

}  // namespace tutti::local_sgd
