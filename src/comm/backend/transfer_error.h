#pragma once
// Types that all backends share for transfers: the clock, the error of a transfer, and the board for failure reports.
#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
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
  /// The published reports, by rank.
  virtual std::vector<std::optional<std::string>> read() = 0;
  /// Waits until the reports or exited_ranks() may have changed since read(), until `deadline` at most.
  virtual void wait_for_change(Deadline deadline);
  /// The ranks from which no further report will come.
  virtual std::vector<int> exited_ranks() { return {}; }
  /// False if the process that passes reports on is known to have exited, or not to have answered for a long time.
  virtual bool is_reachable() { return true; }
  /// Whether that process answers within `timeout`.
  virtual bool answers(std::chrono::milliseconds /*timeout*/) { return is_reachable(); }
  /// The rank whose process passes reports on; -1 for none.
  virtual int owner() const { return -1; }
};

// Reading shared memory is cheap, so such boards are polled.
inline void FailureBoard::wait_for_change(Deadline deadline) {
  constexpr auto poll_interval = std::chrono::milliseconds(5);
  std::this_thread::sleep_until(std::min(deadline, Clock::now() + poll_interval));
}

}  // namespace tutti::comm
