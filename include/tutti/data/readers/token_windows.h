#pragma once
// Token files cut into windows: what a language model trains on.
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

/// How files are cut.
struct TokenWindowsOptions {
  std::int64_t context = 1024;  ///< tokens in a window
  /// Tokens from one window's beginning to the next one's; 0: `context`, side by side. 1: a window from every token on,
  /// as nanoGPT draws them.
  std::int64_t stride = 0;
};

/// A dataset for tutti's and LibTorch's loaders. A window is `context` tokens and, as targets, the same one later; no
/// window reaches from one file into another. Copies share the files.
class TokenWindows final : public torch::data::datasets::BatchDataset<TokenWindows, torch::data::Example<>> {
 public:
  /// Windows of all files, one file after the other. Throws UsageError for options out of range, and DataError naming a
  /// file that is too short for one window.
  explicit TokenWindows(std::vector<TokenFile> files, const TokenWindowsOptions& options = {});
  /// The same of one file.
  explicit TokenWindows(TokenFile file, const TokenWindowsOptions& options = {})
      : TokenWindows(std::vector<TokenFile>{std::move(file)}, options) {}

  /// data, target: int64 [batch, context]. Throws DataError as TokenFile::read().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> windows) override;
  /// Windows in all files.
  std::optional<std::size_t> size() const override { return windows_.back(); }

 private:
  std::vector<TokenFile> files_;
  std::vector<std::size_t> windows_;  // up to and with each file
  std::int64_t context_;
  std::int64_t stride_;
};

}  // namespace tutti
