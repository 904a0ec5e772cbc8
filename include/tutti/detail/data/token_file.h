#pragma once
// A file of tokens, mapped into memory, in the formats of nanoGPT and llm.c.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

namespace tutti {

namespace readers {
class MappedFile;
}

/// The format of a token file.
enum class TokenFormat {
  automatic,  ///< llm_c if the file begins with llm.c's magic number, else uint16
  uint16,     ///< tokens of 16 bits without a header, as in nanoGPT's train.bin
  uint32,     ///< tokens of 32 bits without a header
  llm_c,      ///< llm.c's .bin: a header of 256 int32, then tokens of 16 (GPT-2) or 32 bits (Llama 3)
};

/// Options of TokenFile.
struct TokenFileOptions {
  /// The format of the file.
  TokenFormat format = TokenFormat::automatic;
  /// Tokens must be below it. read() checks the tokens that it reads; check() checks all tokens. Unset: no check.
  std::optional<std::int64_t> vocabulary_size{};
};

/// A read-only token file. Copies share the mapping. Thread safe. The file must not become shorter while it is mapped.
class TokenFile {
 public:
  /// Maps the file. Throws DataError for a file that is missing, empty, truncated or in another format.
  explicit TokenFile(const std::filesystem::path& path, const TokenFileOptions& options = {});

  /// Number of tokens in the file.
  std::int64_t size() const { return size_; }
  /// Bits of a token in the file: 16 or 32.
  int bits_per_token() const { return 8 * width_; }
  /// The path of the file.
  const std::filesystem::path& path() const;

  /// Fills `tokens` with the file's tokens from number `first` on, which must exist. Throws DataError with a token that
  /// is not in the vocabulary.
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;
  /// Checks every token, which reads the whole file. Throws DataError as read() does.
  void check() const;

 private:
  std::shared_ptr<const readers::MappedFile> file_;
  const std::byte* tokens_;
  std::int64_t size_;
  int width_;
  std::optional<std::int64_t> vocabulary_size_;
};

}  // namespace tutti
