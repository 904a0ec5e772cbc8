#include "tutti/data/readers/token_windows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

TokenWindows::TokenWindows(std::vector<TokenFile> files, const TokenWindowsOptions& options)
    : files_(std::move(files)),
      context_(options.context),
      stride_(options.stride == 0 ? options.context : options.stride) {
  if (files_.empty()) throw UsageError("TokenWindows: no files");
  if (context_ < 1)
    throw UsageError("TokenWindows: context is " + std::to_string(context_) + ": it must be at least 1");
  if (stride_ < 1) throw UsageError("TokenWindows: stride is " + std::to_string(stride_) + ": it must not be negative");
  std::size_t windows = 0;
  for (const TokenFile& file : files_) {
    if (file.size() <= context_) {
      throw DataError(file.path().string() + ": has " + std::to_string(file.size()) + " tokens; a context of " +
                      std::to_string(context_) + " needs at least one more than that");
    }
    windows += static_cast<std::size_t>((file.size() - context_ - 1) / stride_ + 1);
    windows_.push_back(windows);
  }
}

torch::data::Example<> TokenWindows::get_batch(c10::ArrayRef<std::size_t> windows) {
  const auto width = static_cast<std::size_t>(context_ + 1);
  const at::Tensor batch =
      at::empty({static_cast<std::int64_t>(windows.size()), static_cast<std::int64_t>(width)}, at::kLong);
  auto* row = batch.mutable_data_ptr<std::int64_t>();
  for (const std::size_t window : windows) {
    if (window >= windows_.back()) {
      throw UsageError("window " + std::to_string(window) + " of a dataset of " + std::to_string(windows_.back()));
    }
    const auto file = std::ranges::upper_bound(windows_, window) - windows_.begin();
    const std::size_t before = file == 0 ? 0 : windows_[static_cast<std::size_t>(file - 1)];
    files_[static_cast<std::size_t>(file)].read(static_cast<std::int64_t>(window - before) * stride_, {row, width});
    row += width;
  }
  return {batch.narrow(1, 0, context_), batch.narrow(1, 1, context_)};
}

}  // namespace tutti
