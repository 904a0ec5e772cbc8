#pragma once
// One connection that is passed on to another, once a secret is proven.
#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "comm/members/handshake.h"
#include "comm/members/sockets.h"

namespace tutti::comm {

/// Bytes on their way from one socket to another. No more are taken than have room here.
class Flow {
 public:
  /// Moves what can be moved now. Throws std::system_error where a connection broke.
  void move(const FileDescriptor& from, const FileDescriptor& to);
  bool wants_to_read() const { return !ended_ && size_ == 0; }
  bool wants_to_write() const { return sent_ < size_; }
  /// The source has ended and all of it has been moved.
  bool is_over() const { return ended_ && !wants_to_write(); }

 private:
  std::array<std::byte, 16 * 1024> buffer_{};
  std::size_t size_ = 0;
  std::size_t sent_ = 0;
  bool ended_ = false;
};

/// Used by one thread.
class Passage {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Who proves it.
  enum class Proof {
    asked,  ///< who has connected, before anything is passed on
    given,  ///< this process, where it passes on to
  };

  /// `near` has connected at `since`; what it says goes to `onward`.
  Passage(FileDescriptor near, SocketAddress onward, Proof proof, JobSecretPtr secret, std::string subject, Time since);

  /// What to poll for is added to `wishes`.
  void wish(std::vector<pollfd>& wishes) const;
  /// When to work() even if nothing is found.
  std::optional<Time> next_try() const { return next_try_; }
  /// Does what can be done now. Returns false when the passage is over.
  bool work(Time now);

  /// Whether it waits for a proof.
  bool is_proving() const { return !proven_; }
  /// Whether a wrong proof was given, or this process's was refused.
  bool has_failed() const { return failed_; }
  Time since() const { return since_; }
  const FileDescriptor& near() const { return near_; }

 private:
  bool prove();
  void call();
  bool call_again(Time now);
  bool pass();

  FileDescriptor near_;
  FileDescriptor far_;
  SocketAddress onward_;
  Proof proof_;
  JobSecretPtr secret_;
  std::string subject_;
  Time since_;
  std::optional<Handshake> handshake_;
  bool connecting_ = false;
  bool proven_ = false;
  bool failed_ = false;
  std::optional<Time> next_try_;
  Flow inwards_;   // near to far
  Flow outwards_;  // far to near
};

}  // namespace tutti::comm
