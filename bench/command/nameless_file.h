#pragma once
// A file without a name, which other processes open by its path and which cannot be left behind.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace tutti::bench {

class NamelessFile {
 public:
  NamelessFile() : descriptor_(::memfd_create("tutti-bench-results", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "cannot make a file in memory");
  }
  ~NamelessFile() { ::close(descriptor_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  std::string path() const { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace tutti::bench
