#pragma once
// Small mutations of files, the same in every run.
#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace tutti::test {

using Random = std::mt19937;

inline std::size_t below(std::size_t bound, Random& random) {
  return bound == 0 ? 0 : std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
}

/// The tokens of JSON and numbers at the limits of their types, followed by `more`.
inline std::vector<std::string> json_words(const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "{", "}", "[", "]", ",", ":", "\"", "-1", "0", "1e9", "9223372036854775807", "18446744073709551615", "null"};
  words.push_back(std::string(1, '\0'));
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Applies one mutation: flips a bit, truncates, removes a piece, inserts one of `words` or a piece of `others`, or
/// repeats a piece.
inline void mutate(std::string& file, const std::vector<std::string>& others, const std::vector<std::string>& words,
                   Random& random) {
  const std::size_t place = below(file.size() + 1, random);
  const std::size_t length = below(std::min<std::size_t>(file.size() - place, 32) + 1, random);
  switch (below(6, random)) {
    case 0:
      if (place < file.size()) file[place] = static_cast<char>(file[place] ^ (1 << below(8, random)));
      break;
    case 1:
      file.resize(place);
      break;
    case 2:
      file.erase(place, length);
      break;
    case 3:
      file.insert(place, words[below(words.size(), random)]);
      break;
    case 4: {
      const std::string& other = others[below(others.size(), random)];
      const std::size_t from = below(other.size() + 1, random);
      file.replace(place, length, other.substr(from, below(64, random)));
      break;
    }
    default:
      file.insert(place, file.substr(place, length));
  }
}

}  // namespace tutti::test
