#include "data/readers/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::readers {

namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path, bool writable) : path_(std::move(path)) {
  const auto fail = [this](const char* what) {
    throw DataError(path_.string() + ": cannot " + what + ": " + std::strerror(errno));
  };
  const Descriptor file(path_);
  if (file.number() < 0) fail("open");
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) fail("stat");
  if (!S_ISREG(status.st_mode)) throw DataError(path_.string() + ": is not a regular file");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  // MAP_NORESERVE: a file may be larger than memory, because only pages that are written are copied.
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  memory_ = ::mmap(nullptr, size_, protection, MAP_PRIVATE | MAP_NORESERVE, file.number(), 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    fail("map");
  }
}

MappedFile::~MappedFile() {
  if (memory_ != nullptr) ::munmap(memory_, size_);
}

}  // namespace tutti::readers
