#pragma once
// DataParallel: replicas of a module on threads of one process, as PyTorch's nn.DataParallel.
//
// forward() cuts its inputs along dimension 0, gives each replica a piece, and puts the outputs together again.
// backward through that output runs in all replicas at once and adds their gradients, in the order of the replicas,
// into those of the module, so the result is that of one process over the whole batch. For several devices, and for
// speed, use several processes and DistributedDataParallel.
// https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tutti {

/// What a DataParallel is told.
struct DataParallelOptions {
  int replicas = 2;  ///< pieces of a batch, each on a thread of its own; at least 1
};

/// Samples in each replica's piece, by torch::chunk's rule: equal pieces, the last one may be shorter, and fewer pieces
/// than replicas where there are not enough samples. One piece of 0 for an empty batch. Throws UsageError.
std::vector<std::int64_t> scatter_sizes(std::int64_t samples, int replicas);

namespace data_parallel {

class ReplicaGroup;
using Call = std::function<at::Tensor(torch::nn::Module& replica, const std::vector<at::Tensor>& pieces)>;
using MakeReplica = std::function<std::shared_ptr<torch::nn::Module>()>;

std::shared_ptr<ReplicaGroup> make_replicas(std::shared_ptr<torch::nn::Module> module, const MakeReplica& make,
                                            const DataParallelOptions& options);
at::Tensor run(const std::shared_ptr<ReplicaGroup>& replicas, const Call& call, const std::vector<at::Tensor>& inputs);

}  // namespace data_parallel

/// Replicas share the module's parameters, which stay what the optimizer holds. Replica 0 shares its buffers too, so
/// BatchNorm's running statistics are those of the first piece, as in PyTorch; the other replicas begin each forward
/// with the module's buffers. train(), eval(), requires_grad and changed parameters reach the replicas; other members
/// are copied when the DataParallel is made. A single piece runs in the module itself.
/// Threads inherit grad mode and autocast; each uses LibTorch's number of threads, so set that to cores / replicas.
/// Random numbers (dropout) come from LibTorch's one generator, in no fixed order. One thread at a time may call it.
template <typename Impl>
class DataParallel {
 public:
  /// The module clones itself (torch::nn::Cloneable); the global generator is left as it was. Throws UsageError where
  /// it cannot, or for fewer than 1 replica.
  explicit DataParallel(std::shared_ptr<Impl> module, const DataParallelOptions& options = {})
      : DataParallel(
            module, [module] { return std::dynamic_pointer_cast<Impl>(module->clone()); }, options) {}
  /// The same for a module holder.
  explicit DataParallel(const torch::nn::ModuleHolder<Impl>& module, const DataParallelOptions& options = {})
      : DataParallel(module.ptr(), options) {}
  /// `make` returns a new module of the same structure, for modules that cannot clone themselves.
  DataParallel(std::shared_ptr<Impl> module, const std::function<std::shared_ptr<Impl>()>& make,
               const DataParallelOptions& options = {})
      : module_(module), replicas_(data_parallel::make_replicas(module, make, options)) {}

  /// The module's forward over tensors that have the same number of samples in dimension 0. The outputs along
  /// dimension 0; a vector with one element for each piece where they are scalars (losses: weigh them with
  /// scatter_sizes). An exception in a replica is thrown here, or in backward, as an Error that names the replica, with
  /// the replica's own exception nested; all replicas have ended then. backward with create_graph throws UsageError.
  template <typename... Tensors>
  at::Tensor forward(const Tensors&... inputs) {
    return apply([](Impl& replica, const Tensors&... pieces) { return replica.forward(pieces...); }, inputs...);
  }
  /// forward().
  template <typename... Tensors>
  at::Tensor operator()(const Tensors&... inputs) {
    return forward(inputs...);
  }
  /// The same with `call(replica, pieces...)` in the place of forward. It runs on several threads at once.
  template <typename Call, typename... Tensors>
  at::Tensor apply(Call call, const Tensors&... inputs) {
    return data_parallel::run(replicas_,
                              [&](torch::nn::Module& replica, const std::vector<at::Tensor>& pieces) {
                                return unpack(call, dynamic_cast<Impl&>(replica), pieces,
                                              std::index_sequence_for<Tensors...>{});
                              },
                              {inputs...});
  }

  /// The module that it was made of, whose parameters are trained.
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
