#include "tracking/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {

AppendFile::AppendFile(std::filesystem::path path, Open how) : path_(std::move(path)) {
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  if (error) {
    throw Error("cannot create the folder " + path_.parent_path().string() + " (" + error.message() +
                "): choose another folder for the run's files");
  }
  const int mode = how == Open::must_be_new ? O_EXCL : 0;
  file_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | mode, 0666));
  if (!file_.is_open()) fail("open");
}

bool AppendFile::ends_with_line() const {
  const off_t size = ::lseek(file_.get(), 0, SEEK_END);
  if (size < 0 && errno == ESPIPE) return true;  // a pipe or a terminal
  char last = 0;
  if (size < 0 || (size > 0 && ::pread(file_.get(), &last, 1, size - 1) != 1)) fail("read");
  return size == 0 || last == '\n';
}

void AppendFile::append(std::string_view bytes) {
  const off_t size = ::lseek(file_.get(), 0, SEEK_END);
  while (!bytes.empty()) {  // one iteration, unless a signal interrupts or the disk is full
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      const int error = errno;
      [[maybe_unused]] const bool is_whole = size >= 0 && ::ftruncate(file_.get(), size) == 0;  // false for a pipe
      errno = error;
      fail("write");
    }
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AppendFile::sync() {
  // Pipes and other special files cannot be synced.
  if (::fdatasync(file_.get()) != 0 && errno != EINVAL) fail("flush");
}

void AppendFile::fail(const char* what) const {
  const int error = errno;
  throw Error("cannot " + std::string(what) + " " + path_.string() + " (" + std::generic_category().message(error) +
              "): check the disk's space and the folder's permissions");
}

}  // namespace tutti
