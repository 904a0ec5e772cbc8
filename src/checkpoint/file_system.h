#pragma once
// The system calls that change files and folders, so that a test can record them, refuse them, or stop at one.
#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>

namespace tutti::checkpoint {

/// Each member is one system call: it returns a negative value and sets errno if the call fails. Thread safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// The file system of the process.
  static const FileSystem& system();

  virtual int open(const std::filesystem::path& path, int flags) const;
  virtual ssize_t write(int descriptor, std::span<const std::byte> bytes) const;
  virtual int sync(int descriptor) const;
  virtual int close(int descriptor) const;
  /// Locks a file exclusively, without waiting. The kernel releases the lock when the file is closed, so also when the
  /// process exits.
  virtual int lock(int descriptor) const;
  virtual int make_folder(const std::filesystem::path& path) const;
  /// Fails with EEXIST if `to` exists.
  virtual int rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to) const;
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  /// Removes a file, or an empty folder.
  virtual int remove(const std::filesystem::path& path) const;
};

/// True if `reason` is the errno of a call that a file system (NFS, FUSE) or an old kernel does not support.
bool is_unsupported(int reason);

}  // namespace tutti::checkpoint
