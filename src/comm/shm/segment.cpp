#include "comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "core/file_descriptor.h"

namespace tutti::comm {
namespace {

[[noreturn]] void throw_errno(const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

FileDescriptor require_open(int descriptor, const char* what) {
  if (descriptor < 0) throw_errno(what);
  return FileDescriptor(descriptor);
}

/// True if the file has the length of the segment at `address` and holds its nonce.
bool contains_segment(const FileDescriptor& file, const SegmentAddress& address) {
  struct stat about {};
  Nonce nonce{};
  const auto end = static_cast<off_t>(address.bytes);
  return ::fstat(file.get(), &about) == 0 && S_ISREG(about.st_mode) &&
         about.st_size == end + static_cast<off_t>(sizeof(nonce)) &&
         ::pread(file.get(), nonce.data(), sizeof(nonce), end) == sizeof(nonce) && nonce == address.nonce;
}

}  // namespace

std::shared_ptr<SharedSegment> SharedSegment::create(std::size_t bytes) {
  FileDescriptor descriptor = require_open(::memfd_create("tutti", MFD_CLOEXEC), "memfd_create");
  const Nonce nonce = random_nonce();
  const auto end = static_cast<off_t>(bytes);
  try_huge_pages(descriptor.get(), bytes);
  if (const int error = ::posix_fallocate(descriptor.get(), 0, end + static_cast<off_t>(sizeof(nonce))); error != 0) {
    throw_errno("allocating shared memory", error);
  }
  if (::pwrite(descriptor.get(), nonce.data(), sizeof(nonce), end) != sizeof(nonce)) throw_errno("writing a memfd");
  // Populate now: page faults on first access cost more than all later work on the memory.
  std::shared_ptr<SharedSegment> segment(new SharedSegment(descriptor.get(), bytes, Mapping::Pages::populate, nonce));
  segment->descriptor_ = descriptor.release();
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::open(const SegmentAddress& address) {
  if (address.process == this_process()) return address.segment->shared_from_this();
  if (!this_process().shares_pid_namespace_with(address.process)) {
    throw_errno("another rank's process is in another PID namespace (container)", EXDEV);
  }
  const std::string path = "/proc/" + std::to_string(address.process.pid) + "/fd/" + std::to_string(address.descriptor);
  const FileDescriptor descriptor = require_open(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK),
                                                 "opening another rank's shared memory");
  if (!contains_segment(descriptor, address)) {
    throw_errno("another rank's shared memory does not match its address", ESTALE);
  }
  // A small segment needs one page table in any case. Of a large segment this rank may need only a shard.
  const auto pages = address.bytes <= huge_page_bytes ? Mapping::Pages::populate : Mapping::Pages::on_demand;
  return std::shared_ptr<SharedSegment>(new SharedSegment(descriptor.get(), address.bytes, pages, address.nonce));
}

SharedSegment::SharedSegment(int descriptor, std::size_t bytes, Mapping::Pages pages, const Nonce& nonce)
    : mapping_(descriptor, bytes, pages), size_(bytes), nonce_(nonce) {}

SharedSegment::~SharedSegment() {
  close_descriptor();
}

SegmentAddress SharedSegment::address() {
  return {.process = this_process(), .descriptor = descriptor_, .bytes = size_, .nonce = nonce_, .segment = this};
}

void SharedSegment::close_descriptor() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace tutti::comm
