#pragma once
// Types that all backends share for transfers: the clock, the error of a transfer, and the board for failure reports.
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A failed transfer. The communicator converts it to a PeerError or TimeoutError that names the failed ranks.
class TransferError : public std::exception {
 public:
  enum class Kind {
    timeout,
    connection_closed,
    peer_closed,      ///< the peer has closed the communicator, after it published its failure report
    process_exited,   ///< the peer's process has exited
    process_stopped,  ///< the peer's process has been stopped for the heartbeat timeout
    heartbeat_lost,   ///< the peer's process has missed heartbeats for the heartbeat timeout
    device_timeout,   ///< a collective on the peer's device has not ended; this rank itself if its own device is late
  };

  TransferError(Kind kind, std::vector<int> peers, std::string detail,
                std::optional<std::chrono::milliseconds> waited = std::nullopt)
      : kind_(kind), peers_(std::move(peers)), detail_(std::move(detail)), waited_(waited) {}
  Kind kind() const { return kind_; }
  const std::vector<int>& peers() const { return peers_; }
  /// How long the rank waited, if that is not the operation's timeout.
  std::optional<std::chrono::milliseconds> waited() const { return waited_; }
  const char* what() const noexcept override { return detail_.c_str(); }

 private:
  Kind kind_;
  std::vector<int> peers_;
  std::string detail_;
  std::optional<std::chrono::milliseconds> waited_;
};

/// The board on which the ranks of a group publish their failure reports. It outlives the group's connections.
class FailureBoard {
 public:
  virtual ~FailureBoard() = default;
  virtual void publish(int rank, const std::string& text) = 0;
  /// The published reports, by rank. Throws if the board is no longer reachable.
  virtual std::vector<std::optional<std::string>> read() = 0;
  /// The ranks whose processes have exited: no further report will come from them.
  virtual std::vector<int> exited_ranks() { return {}; }
  /// False if the board is known not to answer for a long time.
  virtual bool is_reachable() { return true; }
  /// The rank whose exit makes the board unreachable; -1 for none.
  virtual int owner() const = 0;
};

}  // namespace tutti::comm
