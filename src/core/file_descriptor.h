#pragma once
// An owner of a file descriptor: closes it on destruction.
//
// A child that is forked without exec has copies of all descriptors. The kernel of a process that exits does not close
// a connection that such a child still has open, so peers would not see the exit. Unshared descriptors are closed in
// each child as it is forked.
#include <unistd.h>

#include <functional>
#include <utility>

namespace tutti {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  /// An unshared descriptor. `open` returns it, or a negative number; it must neither block nor use a FileDescriptor.
  static FileDescriptor open_unshared(const std::function<int()>& open);
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_unshared_(std::exchange(other.is_unshared_, false)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      is_unshared_ = std::exchange(other.is_unshared_, false);
    }
    return *this;
  }
  ~FileDescriptor() { reset(); }

  void reset() {
    if (fd_ < 0) return;
    is_unshared_ ? close_unshared() : void(::close(fd_));
    fd_ = -1;
    is_unshared_ = false;
  }
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Releases ownership of a descriptor that is not unshared: the caller must close it.
  int release() { return std::exchange(fd_, -1); }
  /// Closes it in children that are forked from now on.
  void unshare();

 private:
  void close_unshared() const;

  int fd_ = -1;
  bool is_unshared_ = false;
};

}  // namespace tutti
