#include "comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "core/allocate_pages.h"
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

constexpr int fixed_size = F_SEAL_SHRINK | F_SEAL_GROW;

/// True if the file has the length of the segment at `address` and holds its nonce, if its owner is this process's
/// user, and if no process can change its length. (An access beyond the end of a file that shrank is a signal.)
bool contains_segment(const FileDescriptor& file, const SegmentAddress& address) {
  struct stat about {};
  Nonce nonce{};
  const auto end = static_cast<off_t>(address.bytes);
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  return ::fstat(file.get(), &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == ::geteuid() && seals >= 0 &&
         (seals & fixed_size) == fixed_size && about.st_size == end + static_cast<off_t>(sizeof(nonce)) &&
         ::pread(file.get(), nonce.data(), sizeof(nonce), end) == sizeof(nonce) && nonce == address.nonce;
}

}  // namespace

// The segments that this process has created, for ranks that are its threads. A rank finds one by its random nonce,
// which it has received: no pointer is received.
class CreatedSegments {
 public:
  void add(const Nonce& nonce, const std::shared_ptr<SharedSegment>& segment) {
    const std::lock_guard lock(mutex_);
    segments_[nonce] = segment;
  }
  void remove(const Nonce& nonce) {
    const std::lock_guard lock(mutex_);
    segments_.erase(nonce);
  }
  /// Null if there is none.
  std::shared_ptr<SharedSegment> find(const Nonce& nonce) {
    const std::lock_guard lock(mutex_);
    const auto found = segments_.find(nonce);
    return found == segments_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<Nonce, std::weak_ptr<SharedSegment>> segments_;
};

namespace {

// Segments hold the object too, because a static one may be destroyed later than this pointer.
std::shared_ptr<CreatedSegments> created_segments() {
  static const auto created = std::make_shared<CreatedSegments>();
  return created;
}

}  // namespace

std::shared_ptr<SharedSegment> SharedSegment::create(std::size_t bytes) {
  FileDescriptor descriptor = require_open(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
  const Nonce nonce = random_nonce();
  const auto end = static_cast<off_t>(bytes);
  try_huge_pages(descriptor.get(), bytes);
  if (const int error = allocate_pages(descriptor.get(), 0, bytes + sizeof(nonce)); error != 0) {
    throw_errno("allocating shared memory", error);
  }
  if (::pwrite(descriptor.get(), nonce.data(), sizeof(nonce), end) != sizeof(nonce)) throw_errno("writing a memfd");
  if (::fcntl(descriptor.get(), F_ADD_SEALS, fixed_size) != 0) throw_errno("sealing a memfd");
  // Populate now: page faults on first access cost more than all later work on the memory.
  std::shared_ptr<SharedSegment> segment(new SharedSegment(descriptor.get(), bytes, Mapping::Pages::populate, nonce));
  segment->descriptor_ = descriptor.release();
  segment->created_ = created_segments();
  segment->created_->add(nonce, segment);
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::open(const SegmentAddress& address, std::size_t bytes) {
  constexpr const char* no_match = "another rank's shared memory does not match its address";
  if (address.bytes != bytes) throw_errno(no_match, ESTALE);
  if (address.process == this_process()) {
    auto segment = created_segments()->find(address.nonce);
    if (!segment || segment->size() != bytes) throw_errno(no_match, ESTALE);
    return segment;
  }
  if (!this_process().shares_pid_namespace_with(address.process)) {
    throw_errno("another rank's process is in another PID namespace (container)", EXDEV);
  }
  const std::string path = "/proc/" + std::to_string(address.process.pid) + "/fd/" + std::to_string(address.descriptor);
  const FileDescriptor descriptor = require_open(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK),
                                                 "opening another rank's shared memory");
  if (!contains_segment(descriptor, address)) throw_errno(no_match, ESTALE);
  // A small segment needs one page table in any case. Of a large segment this rank may need only a shard.
  const auto pages = address.bytes <= huge_page_bytes ? Mapping::Pages::populate : Mapping::Pages::on_demand;
  return std::shared_ptr<SharedSegment>(new SharedSegment(descriptor.get(), address.bytes, pages, address.nonce));
}

SharedSegment::SharedSegment(int descriptor, std::size_t bytes, Mapping::Pages pages, const Nonce& nonce)
    : mapping_(descriptor, bytes, pages), size_(bytes), nonce_(nonce) {}

SharedSegment::~SharedSegment() {
  if (created_) created_->remove(nonce_);
  close_descriptor();
}

SegmentAddress SharedSegment::address() const {
  return {.process = this_process(), .descriptor = descriptor_, .bytes = size_, .nonce = nonce_};
}

void SharedSegment::close_descriptor() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace tutti::comm
