#pragma once
// Files written to disk for good and read with care: sizes and checksums on the way, errors with the path and the
// system's reason.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tutti::checkpoint {

/// What tells whether a file is still the one that was written.
struct FileDigest {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< CRC-32C
  bool operator==(const FileDigest&) const = default;
};

/// A new file, or an old one emptied. Throws CheckpointError.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes all of `bytes`.
  void write(std::span<const std::byte> bytes);
  /// Returns when the content is on disk. Call once, last.
  FileDigest finish();

 private:
  std::filesystem::path path_;
  int descriptor_;
  FileDigest digest_{};
};

/// A regular file, read from its beginning. Throws CheckpointError.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// The file's size when it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills all of `bytes`.
  void read(std::span<std::byte> bytes);
  /// Of what was read so far.
  FileDigest digest() const { return digest_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::uint64_t size_ = 0;
  FileDigest digest_{};
};

FileDigest write_text(const std::filesystem::path& path, const std::string& text);

struct FileText {
  std::string text{};
  FileDigest digest{};
};
FileText read_text(const std::filesystem::path& path);

/// Returns when the names in `folder` are on disk. File systems that cannot do that are left to themselves.
void sync_folder(const std::filesystem::path& folder);

/// `path` without a slash at its end, and with a parent: "a/" becomes "./a".
std::filesystem::path normalized(const std::filesystem::path& path);

/// Makes `folder` and what is missing above it, and syncs the folders that got new names.
void make_folders(const std::filesystem::path& folder);

/// Renames within one folder, and returns when that is on disk.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes `folder` with all that is in it; does nothing when it is not there.
void remove_folder(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint
