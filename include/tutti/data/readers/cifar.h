#pragma once
// CIFAR-10 and CIFAR-100 in their binary version (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
// 2009): records of one label (CIFAR-100: two, coarse and fine) and 3072 pixels, red first.
#include <filesystem>
#include <vector>

#include "tutti/detail/data/labelled_images.h"

namespace tutti {

/// Options of the CIFAR readers.
struct CifarOptions {
  bool train = true;  ///< the training files; else the test file
  /// CIFAR-100: read the 20 coarse labels instead of the 100 fine labels.
  bool coarse = false;
  /// Conversion of pixels to floats.
  PixelScaling scaling{};
};

/// Reads data_batch_1.bin .. data_batch_5.bin, or test_batch.bin, from `folder`: images [n, 3, 32, 32]. Throws
/// DataError with the name of a file that is missing, damaged, or has a label out of range.
LabelledImages read_cifar10(const std::filesystem::path& folder, const CifarOptions& options = {});
/// Reads train.bin or test.bin from `folder`.
LabelledImages read_cifar100(const std::filesystem::path& folder, const CifarOptions& options = {});

/// Reads CIFAR-10 from these files, in order.
LabelledImages read_cifar10_files(const std::vector<std::filesystem::path>& files, const CifarOptions& options = {});
/// Reads CIFAR-100 from these files, in order.
LabelledImages read_cifar100_files(const std::vector<std::filesystem::path>& files, const CifarOptions& options = {});

}  // namespace tutti
