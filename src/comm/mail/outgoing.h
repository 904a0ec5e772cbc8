#pragma once
// The letters that go to one other rank.
#include <poll.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/process.h"
#include "comm/mail/order.h"
#include "comm/members/handshake.h"
#include "comm/members/sockets.h"

namespace tutti::comm {

/// Where a rank takes letters, as it stands in the store.
struct PostalAddress {
  SocketAddress socket;
  Nonce nonce{};  ///< who does not know it is turned away

  std::string to_text() const;
  static PostalAddress from_text(const std::string& text);
};

/// What members prove the job's secret for where there is one, before anything else is said.
inline constexpr const char* mail_subject = "mail";

/// The first bytes of a connection of members.
struct Greeting {
  Nonce nonce{};
  std::int64_t rank = 0;  ///< in the job
};

/// Used by one thread at a time.
class Outgoing {
 public:
  /// `secret` is null where none is to be proven.
  Outgoing(int own_rank, JobSecretPtr secret) : own_rank_(own_rank), secret_(std::move(secret)) {}

  void add(const Letter& letter, OrderPtr order);
  /// Nobody is told more than what is on its way.
  bool is_connected() const { return socket_.is_open() && !connecting_ && !handshake_; }
  /// No order is left.
  bool idle() const;
  /// A farewell is on its way to a rank that is there.
  bool says_farewell() const { return is_connected() && !parcels_.empty(); }
  bool needs_address() const { return !idle() && !socket_.is_open() && !broken_; }
  /// Orders of the group that have not begun to leave end with `failure`.
  void end(std::uint64_t group, const std::exception_ptr& failure, AllEnded& ended);
  /// The peer is gone.
  void lose(AllEnded& ended);
  /// This rank ends without sending what is left.
  void let_go(AllEnded& ended);
  void connect(const PostalAddress& address, AllEnded& ended);

  /// What to poll for; nullopt without a connection.
  std::optional<pollfd> wish() const;
  /// After poll() has found something: writes what can be written.
  void work(short found, AllEnded& ended);
  /// Orders whose deadline has passed, or whose peer is gone and has no connection.
  void look(Deadline now, bool look_for_the_gone, AllEnded& ended);
  std::optional<Deadline> next_deadline() const;

 private:
  struct Parcel {
    Letter letter;
    OrderPtr order;  // null for a farewell
    std::size_t sent = 0;
  };
  /// Returns whether the other side has proven what it has to.
  bool prove(AllEnded& ended);
  void write(AllEnded& ended);
  using Why = std::exception_ptr (*)(const Order&);
  void give_up(AllEnded& ended, Why why);

  int own_rank_;
  JobSecretPtr secret_;
  FileDescriptor socket_;
  std::optional<Handshake> handshake_;  // until it is over
  bool connecting_ = false;
  bool broken_ = false;
  Greeting greeting_;
  std::size_t greeted_ = 0;
  std::deque<Parcel> parcels_;
};

}  // namespace tutti::comm
