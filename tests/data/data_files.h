#pragma once
// Bytes of small data files.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::test {

inline std::string little_endian_bytes(std::uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i) & 0xFF);
  return text;
}

inline std::string big_endian_bytes(std::uint64_t number, int bytes) {
  const std::string text = little_endian_bytes(number, bytes);
  return {text.rbegin(), text.rend()};
}

inline std::string idx_bytes(int type, const std::vector<std::uint32_t>& sizes, const std::string& data) {
  std::string file(2, '\0');
  file += static_cast<char>(type);
  file += static_cast<char>(sizes.size());
  for (const std::uint32_t size : sizes) file += big_endian_bytes(size, 4);
  file += data;
  return file;
}

inline std::string npy_bytes(const std::string& dict, const std::string& data, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  file += little_endian_bytes(dict.size(), version == 1 ? 2 : 4);
  file += dict;
  file += data;
  return file;
}

inline std::string llm_c_bytes(std::uint32_t magic, std::uint32_t version, std::uint32_t count,
                               const std::string& tokens) {
  std::string file = little_endian_bytes(magic, 4);
  file += little_endian_bytes(version, 4);
  file += little_endian_bytes(count, 4);
  file.resize(1024);
  file += tokens;
  return file;
}

inline std::string token_bytes(const std::vector<std::uint32_t>& tokens, int bytes = 2) {
  std::string file;
  for (const std::uint32_t token : tokens) file += little_endian_bytes(token, bytes);
  return file;
}

}  // namespace tutti::test
