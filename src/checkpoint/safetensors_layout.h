#pragma once
// The header of a safetensors file. No I/O, no LibTorch.
//
//   8 bytes   N, little-endian
//   N bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, and optionally
//             "__metadata__": {"word": "text", ...}
//   the rest  data, row-major, little-endian; offsets count from its beginning
//
// Rejects what the reference implementation (huggingface/safetensors, 0.8) rejects: data that tensors do not cover
// exactly once, sizes that contradict the shape, unknown dtypes, headers of more than 100 MB. Also rejects duplicate
// names, which the README of the format forbids, and shapes that LibTorch cannot represent. Accepts spaces around the
// JSON, unknown fields, any order of names, and unaligned data.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tutti::checkpoint {

/// A dtype's name in the file, and the bytes of one element.
struct ElementType {
  const char* name;
  std::size_t width;
};
inline constexpr std::array<ElementType, 19> element_types = {{
    {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2", 1}, {"F8_E5M2FNUZ", 1},
    {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},     {"BF16", 2},        {"I32", 4},     {"U32", 4},
    {"F32", 4},     {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8},
}};

struct TensorEntry {
  std::string name{};
  std::size_t type = 0;  ///< index into element_types
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;  ///< bytes from the data's beginning
  std::uint64_t end = 0;
};

struct SafetensorsLayout {
  /// In the order of their data, without gaps.
  std::vector<TensorEntry> tensors{};
  std::map<std::string, std::string> metadata{};
};

/// Size of the header's length field in bytes.
inline constexpr std::size_t prefix_size = 8;

/// Returns the size of the header from the first bytes of the file. Throws CheckpointError if it does not fit in
/// `file_size` bytes.
std::uint64_t header_size(std::span<const std::byte, prefix_size> prefix, std::uint64_t file_size);

/// Throws CheckpointError with the reason if the header is invalid.
SafetensorsLayout parse_header(std::span<const std::byte> header, std::uint64_t data_size);

/// Both functions above, for a file that is in memory.
SafetensorsLayout parse_safetensors(std::span<const std::byte> file);

/// Sorts the tensors of `layout` as the reference does: wide dtypes first, so that all are aligned, then by name. Sets
/// their offsets from their shapes. Returns the bytes of the file up to the data. Throws UsageError for a name or text
/// that is not UTF-8, and for a tensor named "__metadata__".
std::string make_header(SafetensorsLayout& layout);

}  // namespace tutti::checkpoint
