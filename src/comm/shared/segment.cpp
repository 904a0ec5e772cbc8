#include "comm/shared/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti::comm {
namespace {

[[noreturn]] void throw_errno(const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

/// Closes a descriptor that nobody took.
class Descriptor {
 public:
  Descriptor(int descriptor, const char* what) : descriptor_(descriptor) {
    if (descriptor < 0) throw_errno(what);
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

}  // namespace

std::shared_ptr<SharedSegment> SharedSegment::create(std::size_t bytes) {
  Descriptor descriptor(::memfd_create("tutti", MFD_CLOEXEC), "memfd_create");
  if (const int error = ::posix_fallocate(descriptor.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    throw_errno("allocating shared memory", error);
  }
  std::shared_ptr<SharedSegment> segment(new SharedSegment(descriptor.get(), bytes));
  segment->descriptor_ = descriptor.release();
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::open(const SegmentAddress& address) {
  if (address.process == ::getpid()) return address.segment->shared_from_this();
  const std::string path = "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  const Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC), "opening another rank's shared memory");
  return std::shared_ptr<SharedSegment>(new SharedSegment(descriptor.get(), address.bytes));
}

SharedSegment::SharedSegment(int descriptor, std::size_t bytes) : size_(bytes) {
  // Populated at once: first touches cost more than anything that is done with the memory later.
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) throw_errno("mapping shared memory");
  data_ = static_cast<std::byte*>(memory);
  // A forked child has no business here.
  ::madvise(memory, bytes, MADV_DONTFORK);
}

SharedSegment::~SharedSegment() {
  close_descriptor();
  if (data_ != nullptr) ::munmap(data_, size_);
}

SegmentAddress SharedSegment::address() {
  return {.process = ::getpid(), .descriptor = descriptor_, .bytes = size_, .segment = this};
}

void SharedSegment::close_descriptor() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace tutti::comm
