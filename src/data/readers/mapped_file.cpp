#include "data/readers/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/file_descriptor.h"
#include "tutti/core/error.h"

namespace tutti::readers {

MappedFile::MappedFile(std::filesystem::path path, bool writable) : path_(std::move(path)) {
  const auto fail = [this](const char* what) {
    throw DataError(path_.string() + ": cannot " + what + ": " + std::strerror(errno));
  };
  // Without O_NONBLOCK, opening a pipe by mistake would wait for a writer.
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) fail("open");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail("stat");
  if (!S_ISREG(status.st_mode)) throw DataError(path_.string() + ": is not a regular file");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  // MAP_NORESERVE: a file may be larger than memory, because only pages that are written are copied.
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  memory_ = ::mmap(nullptr, size_, protection, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    fail("map");
  }
}

MappedFile::~MappedFile() {
  if (memory_ != nullptr) ::munmap(memory_, size_);
}

}  // namespace tutti::readers
