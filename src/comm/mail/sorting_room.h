#pragma once
// Which message goes to which receive, for all groups of a job. Pure: it touches memory and clocks that it is given.
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "comm/mail/pigeonhole.h"

namespace tutti::comm {

/// A message that is being read.
struct Body {
  Letter letter;
  OrderPtr order;                ///< whose memory it is read into
  ArrivedPtr message;            ///< or where it lies until somebody takes it
  std::vector<std::byte> scrap;  ///< or nobody's, a piece at a time
  std::span<std::byte> to;
  std::size_t read = 0;     ///< bytes of `to`
  std::uint64_t later = 0;  ///< bytes of the message behind those that `to` takes

  /// `to` is full: makes room for the next piece. Returns false where nothing is left.
  bool next_piece();
  /// What is left of the message is nobody's.
  void read_into_scrap();
};

/// Used with the office's mutex held. What ends on the way is added to `ended`, for the office to tell.
class SortingRoom {
 public:
  /// `room`: bytes of messages that nobody has asked for yet.
  explicit SortingRoom(std::uint64_t room = std::uint64_t{1} << 30) : room_(room) {}

  /// Whether the message can begin now. If not, ask again when something has been received: it waits on the wire.
  bool has_room_for(const Letter& letter);

  void receive(std::uint64_t group, OrderPtr order, AllEnded& ended);

  /// A letter of rank `from` of the job has come. Where its bytes go; nullopt where none follow.
  std::optional<Body> begin(const Letter& letter, int from, AllEnded& ended);
  /// All its bytes have come.
  void complete(Body& body, AllEnded& ended);
  /// Nothing more comes from rank `from`, and `body` was not complete, if there is one.
  void lose(int from, Body* body, AllEnded& ended);

  /// What waits and will wait in `group` ends with `failure`. Returns false where it has been ended before.
  bool end(std::uint64_t group, const std::exception_ptr& failure, AllEnded& ended);
  void end_all(AllEnded& ended);

  /// Ends what has waited too long or, where it is asked for, waits for somebody who is gone.
  void look(Deadline now, bool for_the_gone, AllEnded& ended);
  /// The same for a message half of which has come: its rest is then nobody's.
  static void look(Body& body, Deadline now, AllEnded& ended);
  std::optional<Deadline> next_deadline() const;

 private:
  void forget(const Arrived& message) { unasked_ -= message.bytes.size(); }

  const std::uint64_t room_;
  std::uint64_t unasked_ = 0;                            // bytes of the messages in `holes_`
  std::map<std::uint64_t, Pigeonhole> holes_;            // by group
  std::map<std::uint64_t, std::exception_ptr> over_;     // groups that take nothing any more
  std::map<std::uint64_t, std::map<int, int>> sources_;  // by group and rank in it: rank in the job
};

}  // namespace tutti::comm
