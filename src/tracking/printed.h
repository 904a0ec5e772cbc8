#pragma once
// Formats numbers as printf does.
#include <array>
#include <cstdio>
#include <string>

namespace tutti {

/// The result has at most 95 characters.
template <typename... Numbers>
std::string printed(const char* format, Numbers... numbers) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), format, numbers...);
  return text.data();
}

}  // namespace tutti
