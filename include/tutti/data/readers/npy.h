#pragma once
// NumPy's .npy files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), versions 1 to 3.
#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <filesystem>
#include <optional>

namespace tutti {

/// Reads the array in the file: bool, integers of 8 to 64 bits, floats of 16 to 64 bits, or complex numbers, in either
/// byte order, in C or Fortran order. The tensor is contiguous in C order. A little-endian file in C order is mapped
/// into memory and read when it is used. Writing to the tensor does not change the file, and the file must not become
/// shorter. Throws DataError for a file that is missing, truncated, not a .npy file, or whose elements are not numbers.
at::Tensor read_npy(const std::filesystem::path& path);

/// A dataset for tutti's and LibTorch's loaders: the rows (first dimension) of one .npy file, or of two files as data
/// and targets. Copies share the memory.
class NpyDataset final : public torch::data::datasets::BatchDataset<NpyDataset, torch::data::Example<>> {
 public:
  /// One file, without targets. Throws DataError as read_npy() does, and for a scalar.
  explicit NpyDataset(const std::filesystem::path& data);
  /// Two files; row i of one belongs to row i of the other. Throws DataError also if their numbers of rows differ.
  NpyDataset(const std::filesystem::path& data, const std::filesystem::path& targets);

  /// Returns the rows in the files' dtypes. `target` is undefined without a second file.
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  /// Number of rows.
  std::optional<std::size_t> size() const override;

  /// The whole first file.
  const at::Tensor& data() const { return data_; }
  /// The whole second file; undefined without one.
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor data_;
  at::Tensor targets_;
};

}  // namespace tutti
