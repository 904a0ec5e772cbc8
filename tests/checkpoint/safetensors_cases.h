#pragma once
// Files by hand, and whether they are safetensors files. The same list is shown to the reference implementation.
#include <string>
#include <vector>

namespace tutti::test {

struct SafetensorsCase {
  std::string name;
  std::string file;
  bool valid;
  /// What the reference (0.8) says where it differs.
  bool reference_valid;
};
std::vector<SafetensorsCase> safetensors_cases();

/// A file with this header and so many bytes of data.
std::string file_of(const std::string& json, std::size_t data);

}  // namespace tutti::test
