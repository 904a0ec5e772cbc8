#pragma once
// MNIST and data sets in its form (Fashion-MNIST, KMNIST, EMNIST): two idx files, unpacked.
#include <filesystem>

#include "tutti/detail/data/labelled_images.h"

namespace tutti {

/// What the readers of MNIST are told.
struct MnistOptions {
  bool train = true;  ///< train-images-idx3-ubyte and train-labels-idx1-ubyte; else t10k-...
  int classes = 10;   ///< labels are 0 .. classes - 1
  /// How pixels become floats.
  PixelScaling scaling{};
};

/// The data set in `folder`: images [60000 or 10000, 1, 28, 28]. Throws DataError naming the file that is missing,
/// damaged, or does not fit the other, or holds a label that is none.
LabelledImages read_mnist(const std::filesystem::path& folder, const MnistOptions& options = {});

/// The same from two files of any name, with images of any size.
LabelledImages read_mnist_files(const std::filesystem::path& images, const std::filesystem::path& labels,
                                const MnistOptions& options = {});

}  // namespace tutti
