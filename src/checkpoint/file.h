#pragma once
// Synced writes and checked reads of files. Both compute size and checksum; errors name the path and the system's
// reason.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file_system.h"

namespace tutti::checkpoint {

/// Throws the CheckpointError of a call that failed with the errno `reason`: "cannot open PATH: ...".
[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path, int reason);

/// Closes a descriptor, once, because close() must not be called again after EINTR. -1: there is none.
class Descriptor {
 public:
  Descriptor(int number, const FileSystem& files) : number_(number), files_(files) {}
  ~Descriptor() {
    if (number_ >= 0) files_.close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()), files_(other.files_) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
  const FileSystem& files_;
};

/// Identifies the content of a file.
struct FileDigest {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< CRC-32C
  bool operator==(const FileDigest&) const = default;
};

/// Creates or truncates a file. All methods throw CheckpointError. `files` must outlive it.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path, const FileSystem& files = FileSystem::system());

  /// Writes all of `bytes`.
  void write(std::span<const std::byte> bytes);
  /// Syncs the content to disk. Must be the last call.
  FileDigest finish();

 private:
  std::filesystem::path path_;
  const FileSystem& files_;
  Descriptor descriptor_;
  FileDigest digest_{};
};

/// Reads a regular file from its beginning. All methods throw CheckpointError.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);

  /// The size when the file was opened.
  std::uint64_t size() const { return size_; }
  /// Fills all of `bytes`.
  void read(std::span<std::byte> bytes);
  /// The digest of the bytes read so far.
  FileDigest digest() const { return digest_; }

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
  FileDigest digest_{};
};

FileDigest write_text(const std::filesystem::path& path, const std::string& text,
                      const FileSystem& files = FileSystem::system());

struct FileText {
  std::string text{};
  FileDigest digest{};
};
/// Reads a whole file. Throws DamagedCheckpointError, before it reads or allocates, if the file has more than
/// `max_size` bytes.
FileText read_text(const std::filesystem::path& path, std::uint64_t max_size);

/// Syncs the names in `folder` to disk. Does nothing on file systems that do not support it.
void sync_folder(const std::filesystem::path& folder, const FileSystem& files = FileSystem::system());

/// `path` without a slash at its end, and with a parent: "a/" becomes "./a".
std::filesystem::path normalized(const std::filesystem::path& path);

/// True if `path` names anything, also a link whose target is missing. Throws CheckpointError if the system does not
/// tell, for example because a folder may not be searched.
bool name_exists(const std::filesystem::path& path);

/// The paths in `folder`; empty if it does not exist. Throws CheckpointError if it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Creates `folder` and its missing parents, and syncs the folders with new names.
void make_folders(const std::filesystem::path& folder, const FileSystem& files = FileSystem::system());

/// Renames within one folder, and syncs the folder. `to` may be a file that exists; it is replaced.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

/// Renames a folder within its parent, and syncs the parent. Returns false, and changes nothing, if `to` exists.
/// Without support for this rename, `to` may be replaced if it is an empty folder.
bool rename_to_new_and_sync(const std::filesystem::path& from, const std::filesystem::path& to,
                            const FileSystem& files = FileSystem::system());

/// Removes `folder` with its content. Does nothing if it does not exist. Several processes may remove it at once.
void remove_folder(const std::filesystem::path& folder, const FileSystem& files = FileSystem::system());

}  // namespace tutti::checkpoint
