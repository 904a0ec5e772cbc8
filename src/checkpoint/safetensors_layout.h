#pragma once
// What a safetensors file says about itself, as pure functions of its bytes: no LibTorch, no files.
//
//   8 bytes   N, little-endian
//   N bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, and optionally
//             "__metadata__": {"word": "text", ...}
//   the rest  data, row-major, little-endian; offsets count from its beginning
//
// Rejected is what the reference implementation (huggingface/safetensors, 0.8) rejects: data that is not covered by
// tensors exactly once, sizes that do not belong to the shape, unknown dtypes, headers of more than 100 MB. Rejected
// besides is what its README forbids, names that occur twice, and shapes that LibTorch cannot have. Accepted are
// spaces around the JSON, further fields, any order of names, and data that is not aligned.
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
  std::size_t type = 0;  ///< index in element_types
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;  ///< bytes from the data's beginning
  std::uint64_t end = 0;
};

struct SafetensorsLayout {
  /// In the order of their data: each begins where the one before ends.
  std::vector<TensorEntry> tensors{};
  std::map<std::string, std::string> metadata{};
};

/// Bytes before the header.
inline constexpr std::size_t prefix_size = 8;

/// The header's size, from the file's first bytes. Throws CheckpointError when it cannot be that of a file of
/// `file_size` bytes.
std::uint64_t header_size(std::span<const std::byte, prefix_size> prefix, std::uint64_t file_size);

/// Throws CheckpointError saying what is wrong.
SafetensorsLayout parse_header(std::span<const std::byte> header, std::uint64_t data_size);

/// Both for a file that is in memory as a whole.
SafetensorsLayout parse_safetensors(std::span<const std::byte> file);

/// Sorts `layout`'s tensors as the reference does (wide dtypes first, so that all are aligned; then by name), sets
/// their offsets from their shapes, and returns the file's bytes up to the data. Throws UsageError for a name or a
/// text that is not UTF-8, or a tensor called "__metadata__".
std::string make_header(SafetensorsLayout& layout);

}  // namespace tutti::checkpoint
