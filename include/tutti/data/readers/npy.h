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

/// The array in the file: bool, integers of 8 to 64 bits, floats of 16 to 64, complex numbers; either byte order, C or
/// Fortran order. It is contiguous in C order. Where the file is so already (little-endian, C order) nothing is read
/// before it is used: the tensor's memory is the file, mapped; writing to it does not change the file, and the file
/// must not become shorter. Throws DataError for a file that is missing, cut off, no .npy file, or holds other things
/// than numbers.
at::Tensor read_npy(const std::filesystem::path& path);

/// Rows (the first dimension) of one .npy file, or of two as data and targets: a dataset for tutti's and LibTorch's
/// loaders. Copies share the memory.
class NpyDataset final : public torch::data::datasets::BatchDataset<NpyDataset, torch::data::Example<>> {
 public:
  /// One file, without targets. Throws DataError as read_npy(), and for a scalar.
  explicit NpyDataset(const std::filesystem::path& data);
  /// Two files whose rows belong together. Throws DataError also where they have different numbers of rows.
  NpyDataset(const std::filesystem::path& data, const std::filesystem::path& targets);

  /// The rows in the files' dtypes; `target` is undefined without a second file.
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  /// Rows.
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
