#pragma once
// Images in memory, with a class for each: what readers of image files return.
#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti {

/// How pixels become numbers: x / 255, then (x - mean) / std, one value a channel. Empty: only the first.
struct PixelScaling {
  std::vector<double> mean{};  ///< subtracted, by channel; of numbers in 0 .. 1
  std::vector<double> std{};   ///< then divided by, by channel
};

/// A dataset for tutti's and LibTorch's loaders; its batches are stacked already. Copies share the images.
class LabelledImages final : public torch::data::datasets::BatchDataset<LabelledImages, torch::data::Example<>> {
 public:
  /// `images`: uint8 [samples, channels, height, width]; `targets`: int64 [samples]. Throws UsageError for a scaling
  /// that does not fit.
  LabelledImages(at::Tensor images, at::Tensor targets, const PixelScaling& scaling = {});

  /// data: float [batch, channels, height, width]; target: int64 [batch].
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  /// Images.
  std::optional<std::size_t> size() const override;

  /// All images: uint8 [samples, channels, height, width].
  const at::Tensor& images() const { return images_; }
  /// All labels: int64 [samples].
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor images_;
  at::Tensor targets_;
  at::Tensor mean_;  // [channels, 1, 1]; undefined: none
  at::Tensor std_;
};

}  // namespace tutti
