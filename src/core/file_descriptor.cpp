#include "core/file_descriptor.h"

#include <pthread.h>

#include <mutex>
#include <set>

namespace tutti {
namespace {

// No thread forks while another one has the mutex.
class UnsharedDescriptors {
 public:
  static UnsharedDescriptors& of_process() {
    static auto* const descriptors = new UnsharedDescriptors();  // outlives all descriptors
    return *descriptors;
  }

  int open(const std::function<int()>& open) {
    const std::lock_guard lock(mutex_);
    const int descriptor = open();
    if (descriptor >= 0) open_.insert(descriptor);
    return descriptor;
  }

  // In a child they are closed already, and their numbers may name other files.
  void close(int descriptor) {
    const std::lock_guard lock(mutex_);
    if (open_.erase(descriptor) > 0) ::close(descriptor);
  }

 private:
  UnsharedDescriptors() {
    ::pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                     [] { of_process().close_all(); });
  }

  void close_all() {
    for (const int descriptor : open_) ::close(descriptor);
    open_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> open_;
};

}  // namespace

FileDescriptor FileDescriptor::open_unshared(const std::function<int()>& open) {
  FileDescriptor opened(UnsharedDescriptors::of_process().open(open));
  opened.is_unshared_ = opened.is_open();
  return opened;
}

void FileDescriptor::unshare() {
  if (fd_ < 0) return;
  UnsharedDescriptors::of_process().open([this] { return fd_; });
  is_unshared_ = true;
}

void FileDescriptor::close_unshared() const {
  UnsharedDescriptors::of_process().close(fd_);
}

}  // namespace tutti
