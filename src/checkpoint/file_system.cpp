#include "checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace tutti::checkpoint {

const FileSystem& FileSystem::system() {
  static const FileSystem files;
  return files;
}

int FileSystem::open(const std::filesystem::path& path, int flags) const {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0666);
}
ssize_t FileSystem::write(int descriptor, std::span<const std::byte> bytes) const {
  return ::write(descriptor, bytes.data(), bytes.size());
}
int FileSystem::sync(int descriptor) const {
  return ::fsync(descriptor);
}
int FileSystem::close(int descriptor) const {
  return ::close(descriptor);
}
int FileSystem::lock(int descriptor) const {
  return ::flock(descriptor, LOCK_EX | LOCK_NB);
}
int FileSystem::make_folder(const std::filesystem::path& path) const {
  return ::mkdir(path.c_str(), 0777);
}
int FileSystem::rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to) const {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
}
int FileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) const {
  return ::rename(from.c_str(), to.c_str());
}
int FileSystem::remove(const std::filesystem::path& path) const {
  return ::remove(path.c_str());
}

bool is_unsupported(int reason) {
  return reason == ENOLCK || reason == ENOSYS || reason == EINVAL || reason == ENOTSUP || reason == EOPNOTSUPP ||
         reason == ENOTTY;
}

}  // namespace tutti::checkpoint
