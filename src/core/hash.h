#pragma once
// A hash that is equal in all processes, unlike std::hash.
#include <cstdint>
#include <string_view>

namespace tutti {

/// FNV-1a.
inline std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3U;
  return hash;
}

}  // namespace tutti
