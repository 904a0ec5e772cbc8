#pragma once
// Where the tokens of a token file stand, as a pure function of the file's bytes: no LibTorch, no files.
//
// Bare files hold nothing but tokens, as nanoGPT's prepare.py writes them. Files of llm.c (dev/data/data_common.py)
// begin with 256 int32: a magic number, a version, the number of tokens; 16-bit tokens (GPT-2) and 32-bit ones (Llama
// 3) have different magic numbers. All numbers are little-endian.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/detail/data/token_file.h"

namespace tutti::readers {

struct TokenLayout {
  std::size_t offset = 0;  ///< of the first token, in bytes
  std::size_t width = 2;   ///< bytes of a token
  std::int64_t count = 0;
};

/// Throws DataError saying what is wrong.
TokenLayout parse_tokens(std::span<const std::byte> file, TokenFormat format);

}  // namespace tutti::readers
