#pragma once
// MNIST and datasets in its format (Fashion-MNIST, KMNIST, EMNIST): two idx files, unpacked.
#include <ATen/core/TensorBody.h>

#include <filesystem>

#include "tutti/detail/data/labelled_images.h"

namespace tutti {

/// Options of the MNIST readers.
struct MnistOptions {
  bool train = true;  ///< train-images-idx3-ubyte and train-labels-idx1-ubyte; else t10k-...
  int classes = 10;   ///< labels are 0 .. classes - 1
  /// Conversion of pixels to floats.
  PixelScaling scaling{};
};

/// Reads the dataset in `folder`: images [60000 or 10000, 1, 28, 28]. Throws DataError with the name of a file that is
/// missing, damaged, does not match the other file, or has a label out of range.
LabelledImages read_mnist(const std::filesystem::path& folder, const MnistOptions& options = {});

/// Reads two files of any name, with images of any size.
LabelledImages read_mnist_files(const std::filesystem::path& images, const std::filesystem::path& labels,
                                const MnistOptions& options = {});

/// Reads the array in the file: uint8, int8, int16, int32, float or double. Throws DataError for a file that is
/// missing, truncated, or not an idx file.
at::Tensor read_idx(const std::filesystem::path& path);

}  // namespace tutti
