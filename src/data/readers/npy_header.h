#pragma once
// The header of a .npy file, as a pure function of the file's bytes: no LibTorch, no files.
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
  char kind = 'f';        ///< NumPy's letter: b, i, u, f or c
  std::size_t width = 4;  ///< bytes of an element
  bool swapped = false;   ///< big-endian
  bool fortran_order = false;
  std::vector<std::int64_t> shape{};
  std::size_t data_offset = 0;
};

/// Throws DataError saying what is wrong, also where the data are not exactly what the shape says, and for dtypes that
/// are no numbers.
NpyHeader parse_npy(std::span<const std::byte> file);

/// The dict alone.
NpyHeader parse_npy_dict(std::string_view dict);

}  // namespace tutti::readers
