#pragma once
// The layout of a token file, parsed from its bytes. No I/O, no LibTorch.
//
// Files without a header contain tokens only, as nanoGPT's prepare.py writes them. Files of llm.c
// (dev/data/data_common.py) begin with 256 int32: a magic number, a version, the number of tokens, and padding. 16-bit
// tokens (GPT-2) and 32-bit tokens (Llama 3) have different magic numbers. All numbers are little-endian.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/detail/data/token_file.h"

namespace tutti::readers {

struct TokenLayout {
  std::size_t offset = 0;  ///< offset of the first token in bytes
  std::size_t width = 2;   ///< bytes per token
  std::int64_t count = 0;
};

/// Throws DataError with the reason if the file is invalid.
TokenLayout parse_tokens(std::span<const std::byte> file, TokenFormat format);

}  // namespace tutti::readers
