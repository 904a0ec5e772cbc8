#pragma once
// Memory that the ranks of one node share: a memfd that one of them creates and the others map.
//
// Nothing has a name, so nothing is left after a crash: the memory goes with the last process that maps it.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/os/process.h"
#include "comm/shm/mapping.h"

namespace tutti::comm {

class SharedSegment;

/// Where processes of the same user find a segment: /proc/PID/fd/N. Travels between ranks as bytes.
struct SegmentAddress {
  ProcessIdentity process;
  int descriptor = -1;
  std::uint64_t bytes = 0;
  Nonce nonce{};                     ///< stands in the segment too, behind its bytes
  SharedSegment* segment = nullptr;  ///< for ranks that are threads of the same process
};

/// A mapping. Thread safe.
class SharedSegment : public std::enable_shared_from_this<SharedSegment> {
 public:
  /// All pages are there from the beginning, so that a full tmpfs is an error here and not a signal later. Throws
  /// std::system_error.
  static std::shared_ptr<SharedSegment> create(std::size_t bytes);
  /// Maps what another process created and still holds open; inside a process it is the same mapping. Nothing is mapped
  /// that is not that segment. Throws std::system_error.
  static std::shared_ptr<SharedSegment> open(const SegmentAddress& address);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return mapping_.data(); }
  std::size_t size() const { return size_; }
  SegmentAddress address();
  /// After all others have opened it.
  void close_descriptor();

 private:
  SharedSegment(int descriptor, std::size_t bytes, Mapping::Pages pages, const Nonce& nonce);

  Mapping mapping_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
  Nonce nonce_;
};

}  // namespace tutti::comm
