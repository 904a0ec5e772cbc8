#pragma once
// Training text: the bytes of a file or a folder, split into windows.
#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

namespace gpt {

/// Returns the bytes (uint8) of the file `path`, or of all text files below the folder `path`, concatenated in the
/// order of their paths. Skips hidden files, and files with a zero byte, which are not text. Throws std::runtime_error
/// if there is no text.
at::Tensor read_text(const std::filesystem::path& path);

struct Split {
  at::Tensor training;
  at::Tensor held_out;  ///< the last tenth, never used for training
};

/// Splits `text`. Each part has at least one window of `context` bytes and the byte after it. Throws std::runtime_error
/// if the text is too short.
Split hold_out(const at::Tensor& text, std::int64_t context);

/// One batch of windows. `targets` are `tokens` shifted by one byte.
struct TextBatch {
  at::Tensor tokens;   ///< int64 [batch, context]
  at::Tensor targets;  ///< int64 [batch, context]
};

/// The adjacent windows of `context` bytes in a text: a dataset for tutti's and LibTorch's loaders.
class TextWindows {
 public:
  using BatchType = TextBatch;

  TextWindows(at::Tensor text, std::int64_t context) : text_(std::move(text)), context_(context) {}

  std::size_t size() const;
  TextBatch get_batch(c10::ArrayRef<std::size_t> windows) const;

 private:
  at::Tensor text_;
  std::int64_t context_;
};

}  // namespace gpt
