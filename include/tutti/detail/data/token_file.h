#pragma once
// Text as tokens in a file, mapped into memory: what nanoGPT and llm.c train on.
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

/// What stands in a token file.
enum class TokenFormat {
  automatic,  ///< llm_c where the file begins with llm.c's magic number, else uint16
  uint16,     ///< nothing but tokens of 16 bits, as nanoGPT's train.bin
  uint32,     ///< nothing but tokens of 32 bits
  llm_c,      ///< llm.c's .bin: a header of 256 int32, then tokens of 16 (GPT-2) or 32 bits (Llama 3)
};

/// How a token file is read.
struct TokenFileOptions {
  /// What the file is.
  TokenFormat format = TokenFormat::automatic;
  /// Tokens must be below it. They are looked at when they are read; check() looks at all of them.
  std::optional<std::int64_t> vocabulary_size{};
};

/// Read-only. Copies share the mapping. May be used by several threads. The file must not become shorter meanwhile.
class TokenFile {
 public:
  /// Maps the file. Throws DataError for a file that is missing, empty, cut off or in another format.
  explicit TokenFile(const std::filesystem::path& path, const TokenFileOptions& options = {});

  /// Tokens in the file.
  std::int64_t size() const { return size_; }
  /// 16 or 32, as they stand in the file.
  int bits_per_token() const { return 8 * width_; }
  /// The file.
  const std::filesystem::path& path() const;

  /// Fills `tokens` with those from number `first` on; they must be there. Throws DataError naming a token that is not
  /// in the vocabulary.
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;
  /// Looks at every token, which reads the whole file. Throws DataError as read().
  void check() const;

 private:
  std::shared_ptr<const readers::MappedFile> file_;
  const std::byte* tokens_;
  std::int64_t size_;
  int width_;
  std::optional<std::int64_t> vocabulary_size_;
};

}  // namespace tutti
