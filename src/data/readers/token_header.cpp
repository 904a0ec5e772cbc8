#include "data/readers/token_header.h"

#include <array>
#include <string>

#include "data/readers/byte_order.h"
#include "tutti/core/error.h"

namespace tutti::readers {

namespace {

constexpr std::size_t header_bytes = 256 * sizeof(std::int32_t);

struct Kind {
  std::int32_t magic;
  std::int32_t version;
  std::size_t width;
};
constexpr std::array<Kind, 2> kinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

const Kind* kind_of(std::span<const std::byte> file) {
  if (file.size() < sizeof(std::int32_t)) return nullptr;
  const auto magic = little_endian<std::int32_t>(file, 0);
  for (const Kind& kind : kinds) {
    if (kind.magic == magic) return &kind;
  }
  return nullptr;
}

TokenLayout parse_llm_c(std::span<const std::byte> file) {
  const Kind* kind = kind_of(file);
  if (kind == nullptr) throw DataError("is not a token file of llm.c: it does not begin with 20240520 or 20240801");
  if (file.size() < header_bytes)
    throw DataError("ends inside its header of " + std::to_string(header_bytes) + " bytes");
  const auto version = little_endian<std::int32_t>(file, 4);
  if (version != kind->version) {
    throw DataError("has version " + std::to_string(version) + "; supported is version " +
                    std::to_string(kind->version));
  }
  const auto count = little_endian<std::int32_t>(file, 8);
  if (count < 0) throw DataError("its header declares " + std::to_string(count) + " tokens");
  const auto expected = static_cast<std::uint64_t>(count) * kind->width;
  const auto there = file.size() - header_bytes;
  if (there != expected) {
    throw DataError("its header declares " + std::to_string(count) + " tokens, " + std::to_string(expected) +
                    " bytes, but " + std::to_string(there) + " follow" +
                    (there < expected ? ": it is truncated, download it again" : ""));
  }
  return {.offset = header_bytes, .width = kind->width, .count = count};
}

}  // namespace

TokenLayout parse_tokens(std::span<const std::byte> file, TokenFormat format) {
  const bool llm_c = format == TokenFormat::llm_c || (format == TokenFormat::automatic && kind_of(file) != nullptr);
  TokenLayout layout;
  if (llm_c) {
    layout = parse_llm_c(file);
  } else {
    layout.width = format == TokenFormat::uint32 ? 4 : 2;
    if (file.size() % layout.width != 0) {
      throw DataError("has " + std::to_string(file.size()) + " bytes, which is not a multiple of the token size " +
                      std::to_string(layout.width) + ": it is truncated, or in another format");
    }
    layout.count = static_cast<std::int64_t>(file.size() / layout.width);
  }
  if (layout.count == 0) throw DataError("has no tokens");
  return layout;
}

}  // namespace tutti::readers
