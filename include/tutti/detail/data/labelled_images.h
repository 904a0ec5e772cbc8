#pragma once
// Labelled images in memory, as readers of image files return them.
#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti {

/// Conversion of pixels to floats: x / 255, then (x - mean) / std, with one value per channel. Empty: x / 255 only.
struct PixelScaling {
  std::vector<double> mean{};  ///< subtracted, by channel; refers to values in 0 .. 1
  std::vector<double> std{};   ///< divisor, by channel
};

/// A dataset for tutti's and LibTorch's loaders. Its batches are stacked tensors. Copies share the images.
class LabelledImages final : public torch::data::datasets::BatchDataset<LabelledImages, torch::data::Example<>> {
 public:
  /// `images`: uint8 [samples, channels, height, width]; `targets`: int64 [samples]. Throws UsageError for other shapes
  /// or dtypes, and for a scaling with another number of channels.
  LabelledImages(at::Tensor images, at::Tensor targets, const PixelScaling& scaling = {});

  /// Returns data: float [batch, channels, height, width]; target: int64 [batch].
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  /// Number of images.
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
