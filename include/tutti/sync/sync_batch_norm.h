#pragma once
// Batch normalization over the batches of all ranks.
//
// Ioffe and Szegedy, "Batch Normalization", ICML 2015;
// https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
#include <ATen/core/TensorBody.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>

#include "tutti/comm/communicator.h"

namespace tutti {

namespace sync {
struct BatchStatistics;
}

/// Replaces torch::nn::BatchNorm1d, 2d and 3d, with the same parameters, buffers, names, evaluation and result on one
/// rank. In training on several ranks, mean and variance are over the batches of all ranks. Batches may differ in size
/// and may be empty on some ranks. Running statistics are equal on all ranks. Samples of filler batches
/// (join_uneven_inputs) count like other samples.
///
/// Build models with it: a LibTorch module cannot be converted, because its members would still hold the old layers.
///
/// In training every rank must call forward in the same order, and backward through the output if gradients of the
/// input are needed. If one rank rejects its input, the other ranks throw PeerError, which names it. Other errors are
/// those of a Communicator. Not thread safe.
class SyncBatchNormImpl : public torch::nn::NormImplBase<2, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Every rank must call it, with the same number of features. All layers made from one `communicator` share one
  /// duplicate of it, so their passes must run in the same order on all ranks, as they do in equal models.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Communicator& communicator);

  /// `input`: [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W], floating point, on the module's device. Throws
  /// UsageError for other inputs and for batches that have one value per channel over all ranks. backward throws
  /// UsageError for create_graph. On an accelerator the host does not wait for the device, except on one rank for a
  /// BatchNormOptions::momentum that is nullopt.
  at::Tensor forward(const at::Tensor& input);

  /// Prints the layer and its options in LibTorch's format.
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  at::Tensor normalize_locally(const at::Tensor& input);
  at::Tensor normalize_across_ranks(const at::Tensor& input);
  sync::BatchStatistics global_statistics(const at::Tensor& input);
  sync::BatchStatistics global_statistics_on_device(const at::Tensor& input);
  void update_running_statistics(const sync::BatchStatistics& statistics);
  double next_momentum();

  Communicator communicator_;
};
/// The module holder: `SyncBatchNorm norm(options, communicator)`.
TORCH_MODULE(SyncBatchNorm);

}  // namespace tutti
