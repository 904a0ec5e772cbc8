#pragma once
// The header of a .npy file, parsed from its bytes. No I/O, no LibTorch.
//
//   6 bytes        \x93NUMPY
//   2 bytes        version: 1.0, 2.0 or 3.0
//   2 or 4 bytes   N, little-endian (4 from version 2.0 on)
//   N bytes        a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, spaces, newline
//   the rest       the elements
//
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::readers {

struct NpyHeader {
  char kind = 'f';        ///< NumPy's character code: b, i, u, f or c
  std::size_t width = 4;  ///< bytes per element
  bool swapped = false;   ///< big-endian
  bool fortran_order = false;
  std::vector<std::int64_t> shape{};
  std::size_t data_offset = 0;
};

/// Throws DataError with the reason if the header is invalid, the size of the data does not match the shape, or the
/// dtype is not numeric.
NpyHeader parse_npy(std::span<const std::byte> file);

/// Parses the dict only.
NpyHeader parse_npy_dict(std::string_view dict);

}  // namespace tutti::readers
