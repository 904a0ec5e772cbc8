#pragma once
// Token files cut into windows, for training a language model.
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/detail/data/token_file.h"

namespace tutti {

/// Options of TokenWindows.
struct TokenWindowsOptions {
  std::int64_t context = 1024;  ///< tokens in a window
  /// Tokens from the start of one window to the start of the next. 0: `context`, so windows do not overlap. 1: a window
  /// starts at every token, as nanoGPT draws them.
  std::int64_t stride = 0;
};

/// A dataset for tutti's and LibTorch's loaders. A window is `context` tokens, with the tokens one position later as
/// targets. No window crosses from one file into another. Copies share the files.
class TokenWindows final : public torch::data::datasets::BatchDataset<TokenWindows, torch::data::Example<>> {
 public:
  /// The windows of all files, one file after the other. Throws UsageError for options out of range, and DataError with
  /// the name of a file that is too short for one window.
  explicit TokenWindows(std::vector<TokenFile> files, const TokenWindowsOptions& options = {});
  /// The windows of one file.
  explicit TokenWindows(TokenFile file, const TokenWindowsOptions& options = {})
      : TokenWindows(std::vector<TokenFile>{std::move(file)}, options) {}

  /// Returns data and target, each int64 [batch, context]. Throws DataError as TokenFile::read() does.
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> windows) override;
  /// Number of windows in all files.
  std::optional<std::size_t> size() const override { return windows_.back(); }

 private:
  std::vector<TokenFile> files_;
  std::vector<std::size_t> windows_;  // number of windows in files 0 .. i
  std::int64_t context_;
  std::int64_t stride_;
};

}  // namespace tutti
