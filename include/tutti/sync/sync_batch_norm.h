#pragma once
// Batch normalization over the batches of all ranks together.
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

/// In the place of torch::nn::BatchNorm1d, 2d and 3d: parameters, buffers, their names, evaluation and the result on
/// one rank are theirs. While training on several ranks, mean and variance are those of all ranks' batches, which may
/// differ in size and be empty on some ranks; running statistics come out equal on all ranks. Samples that stand in for
/// missing ones (join_uneven_inputs) count like others.
///
/// Models must be built with it: a LibTorch module cannot be converted, its members would go on holding the old layers.
///
/// While training every rank must call forward, and backward through the output where gradients of the input are
/// wanted, as often and in the same order. A rank whose input is refused is named on the others (PeerError);
/// otherwise errors are those of a Communicator. Not thread safe.
class SyncBatchNormImpl : public torch::nn::NormImplBase<2, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Every rank must call it, with the same number of features. All layers made from one `communicator` share a
  /// channel: their passes must come in the same order on all ranks, as they do in equal models.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Communicator& communicator);

  /// `input`: [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W] on the CPU, floating. Throws UsageError for other
  /// inputs, for normalization by a batch that has one value in each channel over all ranks, and in backward for
  /// create_graph.
  at::Tensor forward(const at::Tensor& input);

  /// As LibTorch's layers print themselves.
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  at::Tensor normalize_locally(const at::Tensor& input);
  at::Tensor normalize_across_ranks(const at::Tensor& input);
  sync::BatchStatistics global_statistics(const at::Tensor& input);
  double next_momentum();

  Communicator communicator_;
};
/// The holder, as torch::nn has one for each of its modules: `SyncBatchNorm norm(options, communicator)`.
TORCH_MODULE(SyncBatchNorm);

}  // namespace tutti
