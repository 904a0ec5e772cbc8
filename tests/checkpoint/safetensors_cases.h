#pragma once
// Files and whether they are valid safetensors files. The reference implementation reads the same list.
#include <string>
#include <vector>

namespace tutti::test {

struct SafetensorsCase {
  std::string name;
  std::string file;
  bool valid;
  /// Whether the reference (0.8) accepts the file, if it differs.
  bool reference_valid;
};
std::vector<SafetensorsCase> safetensors_cases();

/// A file with this header and `data` bytes of data.
std::string file_of(const std::string& json, std::size_t data);

}  // namespace tutti::test
