#pragma once
// Writes a file under a hidden name beside its own, and renames it: a reader sees the old content or the new content.
#include <filesystem>
#include <functional>

namespace tutti::checkpoint {

/// A file that is complete under its hidden name. Writes through a link, and writes what is no regular file, such as a
/// device, in place. All methods throw CheckpointError.
class FileReplacement {
 public:
  /// Calls `write` with the hidden name, which must create and sync the file. Removes the hidden file if `write`
  /// throws; a process that is killed leaves it.
  FileReplacement(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);
  /// Removes the hidden file unless commit() has renamed it.
  ~FileReplacement();
  FileReplacement(const FileReplacement&) = delete;
  FileReplacement& operator=(const FileReplacement&) = delete;

  /// Removes the file that commit() would replace, and syncs the folder.
  void remove_earlier();
  /// Gives the file its name, and syncs the folder.
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path partial_{};  // the hidden name; empty for a file that was written in place
};

/// A FileReplacement that is committed at once.
void replace_file(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);

}  // namespace tutti::checkpoint
