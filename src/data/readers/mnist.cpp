#include "tutti/data/readers/mnist.h"

#include <ATen/core/Tensor.h>

#include <string>

#include "data/readers/labels.h"
#include "tutti/core/error.h"

namespace tutti {

LabelledImages read_mnist(const std::filesystem::path& folder, const MnistOptions& options) {
  const std::string part = options.train ? "train" : "t10k";
  return read_mnist_files(folder / (part + "-images-idx3-ubyte"), folder / (part + "-labels-idx1-ubyte"), options);
}

LabelledImages read_mnist_files(const std::filesystem::path& images, const std::filesystem::path& labels,
                                const MnistOptions& options) {
  const at::Tensor pixels = read_idx(images);
  const at::Tensor targets = read_idx(labels);
  if (pixels.dim() != 3 || pixels.scalar_type() != at::kByte) {
    throw DataError(images.string() + ": does not hold images: it must have three dimensions of unsigned bytes");
  }
  if (targets.dim() != 1 || targets.scalar_type() != at::kByte) {
    throw DataError(labels.string() + ": does not hold labels: it must have one dimension of unsigned bytes");
  }
  if (pixels.size(0) != targets.size(0)) {
    throw DataError(labels.string() + ": has " + std::to_string(targets.size(0)) + " labels for the " +
                    std::to_string(pixels.size(0)) + " images of " + images.string());
  }
  readers::check_labels(targets, options.classes, labels);
  return {pixels.unsqueeze(1), targets.to(at::kLong), options.scaling};
}

}  // namespace tutti
