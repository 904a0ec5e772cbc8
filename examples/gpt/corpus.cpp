#include "corpus.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace gpt {
namespace fs = std::filesystem;
namespace {

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw std::runtime_error("cannot read " + path.string() + ": " + std::strerror(errno));
  return bytes;
}

std::vector<fs::path> visible_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    if (hidden && entry->is_directory()) entry.disable_recursion_pending();
    if (!hidden && entry->is_regular_file()) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string concatenated_text(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) throw std::runtime_error("no such file or folder: " + path.string());
  if (!fs::is_directory(status)) return read_file(path);
  std::string text;
  for (const auto& file : visible_files(path)) {
    const auto bytes = read_file(file);
    if (bytes.find('\0') == std::string::npos) text += bytes;
  }
  return text;
}

}  // namespace

at::Tensor read_text(const fs::path& path) {
  std::string text;
  try {
    text = concatenated_text(path);
  } catch (const fs::filesystem_error& error) {
    throw std::runtime_error("cannot read " + error.path1().string() + ": " + error.code().message());
  }
  if (text.empty()) throw std::runtime_error("no text in " + path.string());
  return at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte).clone();
}

Split hold_out(const at::Tensor& text, std::int64_t context) {
  const auto window = context + 1;
  if (text.numel() < 2 * window) {
    throw std::runtime_error("the text has " + std::to_string(text.numel()) + " bytes; a context of " +
                             std::to_string(context) + " needs at least " + std::to_string(2 * window) +
                             ": give more text or a smaller --context");
  }
  const auto held_out = std::max(text.numel() / 10, window);
  return {text.narrow(0, 0, text.numel() - held_out), text.narrow(0, text.numel() - held_out, held_out)};
}

std::size_t TextWindows::size() const {
  return static_cast<std::size_t>((text_.numel() - 1) / context_);
}

TextBatch TextWindows::get_batch(c10::ArrayRef<std::size_t> windows) const {
  const auto width = context_ + 1;
  auto batch = at::empty({static_cast<std::int64_t>(windows.size()), width}, at::kLong);
  const auto* text = text_.const_data_ptr<std::uint8_t>();
  auto* row = batch.mutable_data_ptr<std::int64_t>();
  for (const auto window : windows) {
    const auto* first = text + static_cast<std::int64_t>(window) * context_;
    row = std::copy(first, first + width, row);
  }
  return {batch.narrow(1, 0, context_), batch.narrow(1, 1, context_)};
}

}  // namespace gpt
