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

class SharedSegment;

/// The address at which processes of the same user open a segment: /proc/PID/fd/N. It is sent between ranks as bytes.
struct SegmentAddress {
  ProcessIdentity process;
  int descriptor = -1;
  std::uint64_t bytes = 0;
  Nonce nonce{};                     ///< also stored in the file, after the segment's bytes
  SharedSegment* segment = nullptr;  ///< for ranks that are threads of the same process
};

/// A mapped segment. Thread safe.
class SharedSegment : public std::enable_shared_from_this<SharedSegment> {
 public:
  /// Creates a segment with all pages allocated, so that a lack of memory is an error here and not a signal later.
  /// Throws std::system_error.
  static std::shared_ptr<SharedSegment> create(std::size_t bytes);
  /// Maps a segment that another process created and still holds open. Returns the existing mapping if it was created
  /// in this process. Throws std::system_error, also if the file at the address is another one.
  static std::shared_ptr<SharedSegment> open(const SegmentAddress& address);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return mapping_.data(); }
  std::size_t size() const { return size_; }
  SegmentAddress address();
  /// Call it after all other ranks have opened the segment.
  void close_descriptor();

 private:
  SharedSegment(int descriptor, std::size_t bytes, Mapping::Pages pages, const Nonce& nonce);

  Mapping mapping_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
  Nonce nonce_;
};

}  // namespace tutti::comm
