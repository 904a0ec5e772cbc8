#pragma once
// Synchronizes the buffers of models: when, and how.
//
// A step must not write a buffer that a later backward pass still needs: a.backward(), first.step(), b.backward() with
// two optimizers in one model. So a buffer is synchronized when the last optimizer of its layer has stepped, and is
// written only if it differs. On a device the comparison would wait: buffers there are written without a change of
// their version counters, so autograd does not detect a backward pass that needs an older value.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/train/accelerator_options.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// A buffer, and the BatchNorm layer whose running statistics it holds; null for other buffers.
struct ModelBuffer {
  NamedParameter named;
  std::shared_ptr<const torch::nn::Module> batch_norm{};
};

/// Decides after which steps buffers are synchronized. No I/O. Must be equal on all ranks.
class BufferSchedule {
 public:
  using OptimizerIndex = std::size_t;

  /// Adds all buffers of `module`. A buffer belongs to the optimizers that train parameters of its layer; if there are
  /// none, of the layer around it. `optimizers_of` returns the optimizers that train any of some parameters.
  void add(const std::shared_ptr<torch::nn::Module>& module, const std::shared_ptr<const std::string>& model_name,
           const std::function<std::set<OptimizerIndex>(const std::vector<at::Tensor>&)>& optimizers_of);
  /// Whether a step of `optimizer` can synchronize a buffer.
  bool concerns(OptimizerIndex optimizer) const;
  /// The buffers to synchronize after a step of `optimizer`: those whose optimizers have all stepped since their last
  /// synchronization, and those whose other optimizers have not stepped while this one has stepped twice.
  std::vector<ModelBuffer> after_step(OptimizerIndex optimizer);

 private:
  struct Group {
    std::set<OptimizerIndex> optimizers;
    std::set<OptimizerIndex> stepped{};  // since the last synchronization
    std::vector<ModelBuffer> buffers{};
  };
  void add_layers(const std::shared_ptr<torch::nn::Module>& module, const std::string& prefix,
                  const std::shared_ptr<const std::string>& model_name, std::set<OptimizerIndex> optimizers,
                  const std::function<std::set<OptimizerIndex>(const std::vector<at::Tensor>&)>& optimizers_of);
  void add_buffer(ModelBuffer buffer, const std::set<OptimizerIndex>& optimizers);

  std::vector<Group> groups_;
};

/// Every rank must call it with the same buffers. Throws MismatchError on every rank, naming a buffer, if its shape or
/// dtype differs between ranks.
void synchronize_buffers(const std::vector<ModelBuffer>& buffers, BufferSync how, const Communicator& communicator);

}  // namespace tutti
