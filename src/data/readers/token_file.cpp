#include "tutti/detail/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "data/readers/byte_order.h"
#include "data/readers/mapped_file.h"
#include "data/readers/token_header.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

template <typename Token>
void copy(const std::byte* from, std::span<std::int64_t> to) {
  for (std::int64_t& token : to) {
    Token read;
    std::memcpy(&read, from, sizeof(read));
    token = read;
    from += sizeof(read);
  }
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, const TokenFileOptions& options)
    : file_(std::make_shared<const readers::MappedFile>(path)), vocabulary_size_(options.vocabulary_size) {
  if (vocabulary_size_ && *vocabulary_size_ < 1) {
    throw UsageError("TokenFile: vocabulary_size is " + std::to_string(*vocabulary_size_) + ": it must be at least 1");
  }
  const auto layout =
      readers::with_file_name(path, [&] { return readers::parse_tokens(file_->bytes(), options.format); });
  tokens_ = file_->bytes().data() + layout.offset;
  size_ = layout.count;
  width_ = static_cast<int>(layout.width);
}

const std::filesystem::path& TokenFile::path() const {
  return file_->path();
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> tokens) const {
  if (first < 0 || first > size_ || std::ssize(tokens) > size_ - first) {
    throw UsageError(path().string() + ": tokens " + std::to_string(first) + " .. " +
                     std::to_string(first + std::ssize(tokens)) + " of " + std::to_string(size_));
  }
  const std::byte* begin = tokens_ + first * width_;
  if (width_ == 2) {
    copy<std::uint16_t>(begin, tokens);
  } else {
    copy<std::uint32_t>(begin, tokens);
  }
  if (!vocabulary_size_) return;
  const auto foreign = std::ranges::find_if(tokens, [this](std::int64_t token) { return token >= *vocabulary_size_; });
  if (foreign == tokens.end()) return;
  throw DataError(path().string() + ": token " + std::to_string(first + (foreign - tokens.begin())) + " is " +
                  std::to_string(*foreign) + ", but the vocabulary has " + std::to_string(*vocabulary_size_) +
                  ": the file has another vocabulary, or another format than the one used (" +
                  std::to_string(bits_per_token()) + " bits per token)");
}

void TokenFile::check() const {
  std::vector<std::int64_t> piece(1 << 16);
  for (std::int64_t first = 0; first < size_; first += std::ssize(piece)) {
    const auto count = std::min<std::int64_t>(std::ssize(piece), size_ - first);
    read(first, std::span(piece).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace tutti
