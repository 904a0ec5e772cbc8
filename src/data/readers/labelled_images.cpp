#include "tutti/detail/data/labelled_images.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <string>
#include <utility>

#include "data/readers/rows.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

at::Tensor by_channel(const std::vector<double>& values, const std::string& name, std::int64_t channels) {
  if (values.empty()) return {};
  if (static_cast<std::int64_t>(values.size()) != channels) {
    throw UsageError("PixelScaling: " + std::to_string(values.size()) + " values in " + name + " for " +
                     std::to_string(channels) + " channels");
  }
  return at::tensor(values, at::kFloat).view({channels, 1, 1});
}

}  // namespace

LabelledImages::LabelledImages(at::Tensor images, at::Tensor targets, const PixelScaling& scaling)
    : images_(std::move(images)), targets_(std::move(targets)) {
  const bool fits = images_.dim() == 4 && images_.scalar_type() == at::kByte && images_.is_contiguous() &&
                    targets_.dim() == 1 && targets_.scalar_type() == at::kLong && targets_.is_contiguous() &&
                    targets_.size(0) == images_.size(0);
  if (!fits)
    throw UsageError("LabelledImages requires uint8 images [n, channels, height, width] and int64 targets [n]");
  for (const double value : scaling.std) {
    if (!(value > 0) || !std::isfinite(value))
      throw UsageError("PixelScaling: a std of " + std::to_string(value) + ": it must be positive and finite");
  }
  for (const double value : scaling.mean) {
    if (!std::isfinite(value))
      throw UsageError("PixelScaling: a mean of " + std::to_string(value) + ": it must be finite");
  }
  mean_ = by_channel(scaling.mean, "mean", images_.size(1));
  std_ = by_channel(scaling.std, "std", images_.size(1));
}

torch::data::Example<> LabelledImages::get_batch(c10::ArrayRef<std::size_t> indices) {
  at::Tensor pixels = readers::rows_of(images_, indices).to(at::kFloat).div_(255);
  if (mean_.defined()) pixels.sub_(mean_);
  if (std_.defined()) pixels.div_(std_);
  return {pixels, readers::rows_of(targets_, indices)};
}

std::optional<std::size_t> LabelledImages::size() const {
  return static_cast<std::size_t>(targets_.size(0));
}

}  // namespace tutti
