#pragma once
// What every engine says about transfers: until when, what went wrong, and where word of a failure is left.
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A transfer that did not end well. The channel turns it into a PeerFailure or Timeout that says who is at fault.
class TransferError : public std::exception {
 public:
  enum class Kind {
    timeout,
    closed,
    left,     ///< the peer has let go of the channel, and has left all the word that it had
    ended,    ///< the peer's process has ended
    stopped,  ///< the peer's process is stopped, and has been for long
    silent,   ///< nothing was heard of the peer's process for long
  };

  TransferError(Kind kind, std::vector<int> peers, std::string detail,
                std::optional<std::chrono::milliseconds> waited = std::nullopt)
      : kind_(kind), peers_(std::move(peers)), detail_(std::move(detail)), waited_(waited) {}
  Kind kind() const { return kind_; }
  const std::vector<int>& peers() const { return peers_; }
  /// How long, where that is not the operation's timeout.
  std::optional<std::chrono::milliseconds> waited() const { return waited_; }
  const char* what() const noexcept override { return detail_.c_str(); }

 private:
  Kind kind_;
  std::vector<int> peers_;
  std::string detail_;
  std::optional<std::chrono::milliseconds> waited_;
};

/// Where ranks of a group leave word about a failure. Outlives the group's connections.
class Bulletin {
 public:
  virtual ~Bulletin() = default;
  virtual void post(int rank, const std::string& text) = 0;
  /// By rank what was posted. Throws when the bulletin cannot be reached any more.
  virtual std::vector<std::optional<std::string>> read() = 0;
  /// Ranks that have left all the word that they had: their processes have ended.
  virtual std::vector<int> ended() { return {}; }
  /// False where it is known that nothing will come from it for long.
  virtual bool answers() { return true; }
  /// The rank whose end makes the bulletin unreachable; -1 for none.
  virtual int holder() const = 0;
};

}  // namespace tutti::comm
