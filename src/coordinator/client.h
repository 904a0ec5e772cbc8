#pragma once
// The connection of one rank to the job's coordinator: key-value entries, heartbeats, failure reports and wait states.
//
// One thread ("tutti-coord") sends heartbeats, reads what the coordinator pushes and calls the callbacks. A connection
// that breaks while both processes live is made again within the heartbeat timeout under the same identity; requests
// that were not answered are sent again. docs/wire_format.md has the messages.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/job.h"
#include "core/job_secret.h"

namespace tutti::coordinator {

struct ClientOptions {
  std::string host =
      "127.0.0.1";  ///< a name, a numeric address (IPv4, IPv6), or "local:NAME" for a socket of this user
  std::uint16_t port = 0;
  JobSecretPtr secret{};  ///< null: the connection is neither authenticated nor encrypted
  Member member{};
  std::chrono::milliseconds connect_timeout{0};
  std::chrono::milliseconds heartbeat_timeout{0};
  std::chrono::milliseconds deadlock_timeout{0};  ///< as in ServerOptions
  /// The coordinator is lost if its machine acknowledges and its process does not answer for this long; 0: never.
  std::chrono::milliseconds response_timeout{0};
};

/// Called on the client's thread, one at a time, in the order in which the coordinator sent the events. A callback
/// must not call back into the client, and must not block.
struct ClientEvents {
  std::function<void(const FailedRanks&)> on_failed{};  ///< once for each event; never names this rank
  std::function<void(const std::vector<int>& ranks)> on_left{};
  /// A failure report that another rank of `group` has published.
  std::function<void(const std::string& group, int rank, const std::string& text)> on_report{};
  std::function<void(const Deadlock&)> on_deadlock{};
  /// The coordinator is lost: no rank of the job can continue. `cause` is what happened to its process; nullopt if the
  /// coordinator refuses this rank, which it has judged to have failed. Called once, and last.
  std::function<void(std::optional<Cause> cause, const std::string& why)> on_lost{};
};

/// Thread safe. Calls that wait throw TimeoutError at their timeout and PeerError when the coordinator is lost.
class Client {
 public:
  /// Connects, says hello and waits until the coordinator has accepted this rank, not until others have joined. Tries
  /// again while nothing listens, until connect_timeout. Throws UsageError if the coordinator refuses this rank (wrong
  /// secret, another world size, another version, a rank that is there already), TimeoutError.
  Client(const ClientOptions& options, ClientEvents events);
  /// Leaves the job in good order, unless an exception is being handled: then the coordinator sees an exit.
  ~Client() = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Key-value entries. Keys and values are bytes; a value has at most max_value_bytes (coordinator/job.h). A call
  // without a timeout waits as long as the coordinator is stopped.
  void set(const std::string& key, std::string_view value);
  std::int64_t add(const std::string& key, std::int64_t increment,
                   std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  /// Stores `desired` if the value equals `expected`; an absent key equals "". Returns the value afterwards.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                          std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  /// Waits until all `keys` exist. Returns their values in order.
  std::vector<std::string> get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  bool check(const std::vector<std::string>& keys, std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  bool erase(const std::string& key);
  std::int64_t num_keys();

  /// Every member's `value`, in the order of `members` (global ranks), once all have called it with the same `topic`.
  /// Throws TimeoutError naming the members that have not, PeerError if one of them has failed. If the coordinator is
  /// silent, the error comes 1 s and `longer` after the timeout and names no rank.
  std::vector<std::string> all_gather(const std::string& topic, const std::vector<int>& members,
                                      const std::string& value, std::chrono::milliseconds timeout,
                                      std::chrono::milliseconds longer = std::chrono::milliseconds(0));

  /// Publishes this rank's failure report (flight::FailureReport::to_text) to the other ranks of the job. Returns
  /// before it is sent; never blocks or throws.
  void report(const std::string& group, const std::string& text) noexcept;
  /// The rank has been blocked in the calls of `wait_state` (flight::WaitState) for `blocked_for` and still is;
  /// `agrees` when it has been so for the deadlock timeout and no thread of the program has used CPU time. unblocked()
  /// takes it back.
  void blocked(const std::string& wait_state, bool agrees,
               std::chrono::milliseconds blocked_for = std::chrono::milliseconds(0)) noexcept;
  void unblocked() noexcept;

 private:
  class Connection;
  std::shared_ptr<Connection> connection_;
};

}  // namespace tutti::coordinator
