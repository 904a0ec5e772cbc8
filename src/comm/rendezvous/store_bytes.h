#pragma once
// A c10d::Store holds bytes; what ranks publish is text.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::comm {

inline std::vector<std::uint8_t> as_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

inline std::string as_text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace tutti::comm
