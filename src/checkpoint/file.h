#pragma once
// Synced writes and checked reads of files. Both compute size and checksum; errors name the path and the system's
// reason.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tutti::checkpoint {

/// Identifies the content of a file.
struct FileDigest {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< CRC-32C
  bool operator==(const FileDigest&) const = default;
};

/// Creates or truncates a file. All methods throw CheckpointError.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes all of `bytes`.
  void write(std::span<const std::byte> bytes);
  /// Syncs the content to disk. Must be the last call.
  FileDigest finish();

 private:
  std::filesystem::path path_;
  int descriptor_;
  FileDigest digest_{};
};

/// Reads a regular file from its beginning. All methods throw CheckpointError.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// The size when the file was opened.
  std::uint64_t size() const { return size_; }
  /// Fills all of `bytes`.
  void read(std::span<std::byte> bytes);
  /// The digest of the bytes read so far.
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

/// Syncs the names in `folder` to disk. Does nothing on file systems that do not support it.
void sync_folder(const std::filesystem::path& folder);

/// `path` without a slash at its end, and with a parent: "a/" becomes "./a".
std::filesystem::path normalized(const std::filesystem::path& path);

/// Creates `folder` and its missing parents, and syncs the folders with new names.
void make_folders(const std::filesystem::path& folder);

/// Renames within one folder, and syncs the folder.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes `folder` with its content; does nothing if it does not exist.
void remove_folder(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint
