#pragma once
// The frames that wait to be sent to one other rank. Pure: the endpoint writes them.
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "comm/transport/tcp/message.h"

namespace tutti::comm {

/// What became of a message that was to be removed; `busy` while its memory is read or written.
enum class Removal { removed, absent, busy };

/// Call with the endpoint's mutex held.
class Outbox {
 public:
  /// Appends the message, or its announcement.
  void add(MessagePtr message);
  /// Appends a frame without bytes.
  void add(const FrameHeader& header) { frames_.push_back({.header = header}); }
  /// Adds a frame without bytes that is sent before the frames which have not begun.
  void add_urgent(const FrameHeader& header);

  bool is_empty() const { return frames_.empty(); }
  /// Whether a message is queued or announced; not the copied rest of one that was removed.
  bool has_messages() const;

  /// The bytes to write next; none for a write of bytes that the connection holds. They stay valid until end_write(),
  /// also without the mutex.
  std::vector<iovec> begin_write();
  /// `count` bytes of them were written.
  void end_write(std::size_t count, Effects& effects);
  bool is_writing() const { return is_writing_; }

  /// The peer pulls or refuses an announced message. Returns false for an id that was never announced.
  bool on_pull(std::uint64_t id);
  bool on_refuse(std::uint64_t id, std::uint64_t bytes, Effects& effects);

  /// Forgets the message. The endpoint does not access its memory any more: bytes that must follow are copied. Throws
  /// std::bad_alloc, and then still has the message.
  Removal remove(const Message& message);
  /// The messages for which predicate(message) holds.
  template <typename Predicate>
  std::vector<MessagePtr> messages(const Predicate& predicate) const {
    std::vector<MessagePtr> found;
    for (const Frame& frame : frames_) {
      if (frame.message && predicate(*frame.message)) found.push_back(frame.message);
    }
    for (const auto& [id, message] : announced_) {
      if (predicate(*message)) found.push_back(message);
    }
    return found;
  }
  /// Removes all frames and messages. Not during a write.
  void clear();

 private:
  struct Frame {
    FrameHeader header;
    MessagePtr message{};                 // null for a frame without bytes, and where `copy` has them
    std::unique_ptr<std::byte[]> copy{};  // the bytes that follow `sent`, of a message that was removed
    std::size_t copied_from = 0;          // the value of `sent` when they were copied
    std::size_t sent = 0;                 // with the header's

    std::size_t size() const { return sizeof(header) + static_cast<std::size_t>(header.bytes_behind()); }
  };

  std::list<Frame> frames_;
  std::size_t in_write_ = 0;  // frames at the front that begin_write() returned
  bool is_writing_ = false;
  std::map<std::uint64_t, MessagePtr> announced_;
  std::uint64_t last_id_ = 0;
};

}  // namespace tutti::comm
