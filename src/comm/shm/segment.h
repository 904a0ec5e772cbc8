#pragma once
// Memory that the ranks of one node share: a memfd that one rank creates and the others map.
//
// A memfd has no name in a file system, so nothing is left after a crash: the kernel frees the memory when the last
// process that maps it exits.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/os/process.h"
#include "comm/shm/mapping.h"

namespace tutti::comm {

/// The address at which processes of the same user open a segment: /proc/PID/fd/N. It is sent between ranks as bytes,
/// and is checked by the receiver: it holds no pointer.
struct SegmentAddress {
  ProcessIdentity process;
  int descriptor = -1;
  std::uint64_t bytes = 0;
  Nonce nonce{};  ///< also stored in the file, after the segment's bytes
};

class CreatedSegments;

/// A mapped segment. Thread safe.
class SharedSegment {
 public:
  /// Creates a segment with all pages allocated, so that a lack of memory is an error here and not a signal later.
  /// Throws std::system_error.
  static std::shared_ptr<SharedSegment> create(std::size_t bytes);
  /// Maps a segment of `bytes` that another process created and still holds open. Returns the existing mapping if it
  /// was created in this process. Throws std::system_error, also if the file at the address is another one, can change
  /// its size, or belongs to another user.
  static std::shared_ptr<SharedSegment> open(const SegmentAddress& address, std::size_t bytes);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return mapping_.data(); }
  std::size_t size() const { return size_; }
  SegmentAddress address() const;
  /// Call it after all other ranks have opened the segment.
  void close_descriptor();

 private:
  SharedSegment(int descriptor, std::size_t bytes, Mapping::Pages pages, const Nonce& nonce);

  Mapping mapping_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
  Nonce nonce_;
  std::shared_ptr<CreatedSegments> created_;  // null if another process has created it
};

}  // namespace tutti::comm
