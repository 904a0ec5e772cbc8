#pragma once
// The invariants of every layout that the parser accepts, for any file.
#include <cstdint>

#include "checkpoint/safetensors_layout.h"

namespace tutti::test {

inline bool layout_holds(const checkpoint::SafetensorsLayout& layout, std::uint64_t file_size) {
  std::uint64_t covered = 0;
  for (const checkpoint::TensorEntry& entry : layout.tensors) {
    if (entry.begin != covered || entry.end < entry.begin || entry.end > file_size) return false;
    covered = entry.end;
    std::uint64_t bytes = checkpoint::element_types.at(entry.type).width;
    for (const std::int64_t size : entry.shape) {
      if (size < 0) return false;
      bytes *= static_cast<std::uint64_t>(size);
    }
    if (bytes != entry.end - entry.begin) return false;
  }
  return covered + checkpoint::prefix_size <= file_size;
}

}  // namespace tutti::test
