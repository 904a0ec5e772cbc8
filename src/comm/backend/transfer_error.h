#pragma once
// What every backend says about transfers: until when, what went wrong, and where word of a failure is left.
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A transfer that did not end well. The channel turns it into a PeerError or TimeoutError that says who is at fault.
class TransferError : public std::exception {
 public:
  enum class Kind {
    timeout,
    connection_closed,
    peer_closed,      ///< the peer has closed the channel, and has published its failure report
    process_exited,   ///< the peer's process has exited
    process_stopped,  ///< the peer's process has been stopped for the heartbeat timeout
    heartbeat_lost,   ///< the peer's process has missed heartbeats for the heartbeat timeout
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
class FailureBoard {
 public:
  virtual ~FailureBoard() = default;
  virtual void publish(int rank, const std::string& text) = 0;
  /// By rank what was posted. Throws when the bulletin cannot be reached any more.
  virtual std::vector<std::optional<std::string>> read() = 0;
  /// Ranks that have left all the word that they had: their processes have ended.
  virtual std::vector<int> exited_ranks() { return {}; }
  /// False where it is known that nothing will come from it for long.
  virtual bool is_reachable() { return true; }
  /// The rank whose end makes the bulletin unreachable; -1 for none.
  virtual int owner() const = 0;
};

}  // namespace tutti::comm
