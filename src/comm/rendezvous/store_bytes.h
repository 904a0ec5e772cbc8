#pragma once
// The store holds bytes; what ranks leave there is text.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace tutti::comm {

inline std::vector<std::uint8_t> as_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

inline std::string as_text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

/// One rank's entry in a list that all ranks append to.
inline std::string encode_entry(int rank, const std::string& text) {
  return std::to_string(rank) + ' ' + std::to_string(text.size()) + ' ' + text;
}

/// By rank the last entry of each in such a list. Reads up to the first malformed entry. Leaves out entries of ranks
/// that a group of `size` does not have: they may have been given another size.
inline std::vector<std::optional<std::string>> parse_entries(const std::string& entries, int size) {
  std::vector<std::optional<std::string>> by_rank(static_cast<std::size_t>(size));
  std::istringstream stream(entries);
  int rank = 0;
  std::size_t length = 0;
  while (stream >> rank >> length && stream.get() == ' ') {
    const auto begin = static_cast<std::size_t>(stream.tellg());
    if (rank < 0 || length > entries.size() - begin) break;
    if (rank < size) by_rank[static_cast<std::size_t>(rank)] = entries.substr(begin, length);
    stream.seekg(static_cast<std::streamoff>(begin + length));
  }
  return by_rank;
}

}  // namespace tutti::comm
