#pragma once
// CIFAR-10 and CIFAR-100 in their binary version (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
// 2009): records of one label (CIFAR-100: two, coarse and fine) and 3072 pixels, red first.
#include <filesystem>
#include <vector>

#include "tutti/detail/data/labelled_images.h"

namespace tutti {

/// What the readers of CIFAR are told.
struct CifarOptions {
  bool train = true;  ///< the training files; else the test file
  /// CIFAR-100: the 20 coarse labels instead of the 100 fine ones.
  bool coarse = false;
  /// How pixels become floats.
  PixelScaling scaling{};
};

/// data_batch_1.bin .. data_batch_5.bin, or test_batch.bin, in `folder`: images [n, 3, 32, 32]. Throws DataError naming
/// the file that is missing or damaged, or holds a label that is none.
LabelledImages read_cifar10(const std::filesystem::path& folder, const CifarOptions& options = {});
/// train.bin or test.bin.
LabelledImages read_cifar100(const std::filesystem::path& folder, const CifarOptions& options = {});

/// The same from these files, one after the other.
LabelledImages read_cifar10_files(const std::vector<std::filesystem::path>& files, const CifarOptions& options = {});
/// The same of CIFAR-100.
LabelledImages read_cifar100_files(const std::vector<std::filesystem::path>& files, const CifarOptions& options = {});

}  // namespace tutti
