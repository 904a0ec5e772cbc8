// The entry point of libFuzzer: https://llvm.org/docs/LibFuzzer.html. The first byte selects the parser.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "data/readers/idx_header.h"
#include "data/readers/npy_header.h"
#include "data/readers/token_header.h"
#include "tutti/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto file = std::as_bytes(std::span(data + 1, size - 1));
  try {
    std::size_t offset = 0;
    switch (data[0] % 3) {
      case 0:
        offset = tutti::readers::parse_npy(file).data_offset;
        break;
      case 1:
        offset = tutti::readers::parse_idx(file).data_offset;
        break;
      default:
        offset = tutti::readers::parse_tokens(file, tutti::TokenFormat::automatic).offset;
    }
    if (offset > file.size()) std::abort();
  } catch (const tutti::DataError&) {
    // The expected error for an invalid file.
  }
  return 0;
}
