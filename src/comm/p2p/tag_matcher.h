#pragma once
// Which message goes to which receive, for all groups of a job. Pure: it touches memory and clocks that it is given.
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "comm/p2p/match_queue.h"

namespace tutti::comm {

/// A message that is being read.
struct Body {
  MessageHeader header;
  RequestPtr request;                     ///< whose memory it is read into
  UnexpectedMessagePtr message;           ///< or the unexpected message that holds it until a receive matches
  std::vector<std::byte> discard_buffer;  ///< or a buffer for bytes to discard, a chunk at a time
  std::span<std::byte> to;
  std::size_t read = 0;           ///< bytes of `to`
  std::uint64_t bytes_after = 0;  ///< bytes of the message behind those that `to` takes

  /// `to` is full: prepares it for the next chunk. Returns false if nothing is left.
  bool next_chunk();
  /// Discards the rest of the message.
  void discard_rest();
};

/// Call with the endpoint's mutex held. Adds requests that complete to `completions`, for the endpoint to deliver.
class TagMatcher {
 public:
  /// `unexpected_limit`: bytes of messages without a matching receive.
  explicit TagMatcher(std::uint64_t unexpected_limit = std::uint64_t{1} << 30) : unexpected_limit_(unexpected_limit) {}

  /// Whether the message can begin now. If not, ask again when something has been received: it waits on the wire.
  bool can_accept(const MessageHeader& header);

  void receive(std::uint64_t group, RequestPtr request, Completions& completions);

  /// A header of rank `from` of the job has come. Where its bytes go; nullopt where none follow.
  std::optional<Body> on_header(const MessageHeader& header, int from, Completions& completions);
  /// All its bytes have come.
  void on_body(Body& body, Completions& completions);
  /// Nothing more comes from rank `from`, and `body` was not complete, if there is one.
  void on_disconnect(int from, Body* body, Completions& completions);

  /// What waits and will wait in `group` ends with `failure`. Returns false where it has been ended before.
  bool close_group(std::uint64_t group, const std::exception_ptr& failure, Completions& completions);
  void close_all(Completions& completions);

  /// Fails receives whose deadline has passed and, with `check_exited`, receives from a rank that has exited.
  void expire(Deadline now, bool check_exited, Completions& completions);
  /// The same for the receive of a partly received message. Discards the rest of the message.
  static void expire(Body& body, Deadline now, Completions& completions);
  std::optional<Deadline> next_deadline() const;

 private:
  void release_bytes(const UnexpectedMessage& message) { unexpected_bytes_ -= message.bytes.size(); }

  const std::uint64_t unexpected_limit_;
  std::uint64_t unexpected_bytes_ = 0;                         // bytes of the messages in `queues_`
  std::map<std::uint64_t, MatchQueue> queues_;                 // by group
  std::map<std::uint64_t, std::exception_ptr> closed_groups_;  // groups that take nothing any more
  std::map<std::uint64_t, std::map<int, int>> sources_;        // by group and rank in it: rank in the job
};

}  // namespace tutti::comm
