#pragma once
// A file in memory that other processes open by its path. The kernel frees it when no process has it open.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace tutti::bench {

class AnonymousFile {
 public:
  AnonymousFile() : descriptor_(::memfd_create("tutti-bench-results", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create failed");
  }
  ~AnonymousFile() { ::close(descriptor_); }
  AnonymousFile(const AnonymousFile&) = delete;
  AnonymousFile& operator=(const AnonymousFile&) = delete;

  std::string path() const { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace tutti::bench
