#pragma once
// DataParallel: replicas of a module on threads of one process, as PyTorch's nn.DataParallel.
//
// forward() splits its inputs along dimension 0, gives each replica a piece, and concatenates the outputs. backward
// through that output runs in all replicas at once and adds their gradients to those of the module, in the order of the
// replicas. The result is that of one process over the whole batch. Replicas may be on several devices of one machine.
// For speed, use several processes and DistributedDataParallel.
// https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tutti {

/// Options of a DataParallel.
struct DataParallelOptions {
  int replicas = 2;  ///< pieces of a batch, each on a thread of its own; at least 1
  /// The device of each replica, instead of `replicas`. The module must be on the first. Each forward copies parameters
  /// and buffers to the other devices. Outputs, and sums of gradients, are on the first device. Empty: all replicas are
  /// on the module's device.
  std::vector<at::Device> devices{};
};

/// Returns the number of samples in each replica's piece, by torch::chunk's rule: equal pieces, the last one may be
/// shorter, and fewer pieces than replicas if there are not enough samples. An empty batch has one piece of 0. Throws
/// UsageError for samples < 0 or replicas < 1.
std::vector<std::int64_t> scatter_sizes(std::int64_t samples, int replicas);

namespace data_parallel {

class ReplicaGroup;
using Call = std::function<at::Tensor(torch::nn::Module& replica, const std::vector<at::Tensor>& pieces)>;
using MakeReplica = std::function<std::shared_ptr<torch::nn::Module>()>;

std::shared_ptr<ReplicaGroup> make_replicas(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make,
                                            const DataParallelOptions& options);
at::Tensor run(const std::shared_ptr<ReplicaGroup>& replicas, const Call& call, const std::vector<at::Tensor>& inputs);

}  // namespace data_parallel

/// Replicas share the module's parameters, so the optimizer's tensors stay valid. Replica 0 also shares its buffers:
/// BatchNorm's running statistics are those of the first piece, as in PyTorch. The other replicas begin each forward
/// with the module's buffers. train(), eval(), requires_grad and changed parameters apply to the replicas; the
/// constructor copies other members. A single piece runs in the module itself.
/// Threads inherit grad mode, autocast and current streams. Each uses LibTorch's number of threads, so set that to
/// cores / replicas. Random numbers (dropout) come from LibTorch's global generator, in no fixed order. Not thread
/// safe.
template <typename Impl>
class DataParallel {
 public:
  /// Clones the module (torch::nn::Cloneable) and restores the state of the global generator. Throws UsageError if the
  /// module cannot be cloned, for fewer than 1 replica, for a device that does not exist, and if the module is not on
  /// the first of several devices.
  explicit DataParallel(std::shared_ptr<Impl> module, const DataParallelOptions& options = {})
      : DataParallel(
            module, [module] { return std::dynamic_pointer_cast<Impl>(module->clone()); }, options) {}
  /// Same as above, for a module holder.
  explicit DataParallel(const torch::nn::ModuleHolder<Impl>& module, const DataParallelOptions& options = {})
      : DataParallel(module.ptr(), options) {}
  /// `make` returns a new module of the same structure, for modules that cannot clone themselves.
  DataParallel(std::shared_ptr<Impl> module, const std::function<std::shared_ptr<Impl>()>& make,
               const DataParallelOptions& options = {})
      : module_(module), replicas_(data_parallel::make_replicas(module, make, options)) {}

  /// Runs the module's forward over tensors that have the same number of samples in dimension 0. Returns the outputs
  /// concatenated along dimension 0, or a vector with one element per piece if they are scalars (weight losses by
  /// scatter_sizes). An exception in a replica is thrown here, or in backward, as an Error that names the replica,
  /// with the replica's exception nested, after all replicas have ended. backward with create_graph throws UsageError.
  template <typename... Tensors>
  at::Tensor forward(const Tensors&... inputs) {
    return apply([](Impl& replica, const Tensors&... pieces) { return replica.forward(pieces...); }, inputs...);
  }
  /// forward().
  template <typename... Tensors>
  at::Tensor operator()(const Tensors&... inputs) {
    return forward(inputs...);
  }
  /// Like forward(), with `call(replica, pieces...)` instead of the module's forward. Several threads run it at once.
  /// Gradients reach the module's registered parameters and `inputs` only: register any other tensor that `call` trains
  /// as a parameter of the module.
  template <typename Call, typename... Tensors>
  at::Tensor apply(Call call, const Tensors&... inputs) {
    return data_parallel::run(replicas_,
                              [&](torch::nn::Module& replica, const std::vector<at::Tensor>& pieces) {
                                return unpack(call, dynamic_cast<Impl&>(replica), pieces,
                                              std::index_sequence_for<Tensors...>{});
                              },
                              {inputs...});
  }

  /// The module of the constructor, whose parameters are trained.
  const std::shared_ptr<Impl>& module() const { return module_; }

 private:
  template <typename Call, std::size_t... places>
  static at::Tensor unpack(Call& call, Impl& replica, const std::vector<at::Tensor>& pieces,
                           std::index_sequence<places...>) {
    return call(replica, pieces[places]...);
  }

  std::shared_ptr<Impl> module_;
  std::shared_ptr<data_parallel::ReplicaGroup> replicas_;
};

}  // namespace tutti
