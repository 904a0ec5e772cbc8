#pragma once
// Text to train on: bytes from a file or a folder, cut into windows.
#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

namespace gpt {

/// The bytes (uint8) of the file `path`, or of all text files in the folder `path` and below it, one after the other in
/// the order of their paths. Hidden files are left out, and those that hold a zero byte: they are not text.
/// Throws std::runtime_error where there is none.
at::Tensor read_text(const std::filesystem::path& path);

struct Split {
  at::Tensor training;
  at::Tensor held_out;  ///< the last tenth: text that the model is never trained on
};

/// Splits `text`; each side has at least one window of `context` bytes and the byte after it. Throws std::runtime_error
/// for a text that is too short.
Split hold_out(const at::Tensor& text, std::int64_t context);

/// What one batch of windows is for the model: `targets` are `tokens` one byte later.
struct TextBatch {
  at::Tensor tokens;   ///< int64 [batch, context]
  at::Tensor targets;  ///< int64 [batch, context]
};

/// The windows of `context` bytes in a text, side by side: a dataset for tutti's and LibTorch's loaders.
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
