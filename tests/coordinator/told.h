#pragma once
// A server and clients in one process, and what the clients were told.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/client.h"
#include "coordinator/server.h"
#include "core/bound_socket.h"

namespace tutti::coordinator::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr auto deadline = seconds(30);  // of tests that hang

inline JobSecretPtr secret(const std::string& text = "a secret of the tests") {
  return std::make_shared<const JobSecret>(text, "the tests");
}

/// What one client was told. Thread safe.
class Told {
 public:
  ClientEvents events() {
    return {.on_failed = [this](const FailedRanks& ranks) { add([&] { failed.push_back(ranks); }); },
            .on_left =
                [this](const std::vector<int>& ranks) {
                  add([&] { left.insert(left.end(), ranks.begin(), ranks.end()); });
                },
            .on_report =
                [this](const std::string& group, int rank, const std::string& text) {
                  add([&] { reports.push_back(group + "/" + std::to_string(rank) + "/" + text); });
                },
            .on_deadlock = [this](const Deadlock& deadlock) { add([&] { deadlocks.push_back(deadlock); }); },
            .on_lost = [this](std::optional<Cause>, const std::string& why) { add([&] { lost.push_back(why); }); }};
  }
  /// Waits until `condition` holds; false after the deadline.
  bool wait_until(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, condition);
  }
  template <typename Function>
  auto locked(const Function& function) {
    const std::lock_guard lock(mutex_);
    return function();
  }

  std::vector<FailedRanks> failed;
  std::vector<int> left;
  std::vector<std::string> reports;
  std::vector<Deadlock> deadlocks;
  std::vector<std::string> lost;

 private:
  void add(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Listens at 127.0.0.1.
inline FileDescriptor listening(std::optional<std::uint16_t> port = std::nullopt) {
  auto bound = bind_to_loopback(port);
  start_listening(bound);
  return std::move(bound.fd);
}

inline ServerOptions server_options(int world_size, JobSecretPtr secret = nullptr) {
  ServerOptions options;
  options.listening = listening();
  options.secret = std::move(secret);
  options.world_size = world_size;
  options.timeouts.heartbeat = seconds(20);
  options.timeouts.deadlock = seconds(20);
  return options;
}

inline ClientOptions client_options(std::uint16_t port, int rank, int world_size, JobSecretPtr secret = nullptr) {
  ClientOptions options;
  options.port = port;
  options.secret = std::move(secret);
  options.member = {.rank = rank, .world_size = world_size, .node = "node 0", .version = "1"};
  options.connect_timeout = seconds(20);
  options.timeouts.heartbeat = seconds(20);
  return options;
}

inline ClientOptions client_options(const Server& server, int rank, int world_size, JobSecretPtr secret = nullptr) {
  return client_options(server.port(), rank, world_size, std::move(secret));
}

}  // namespace tutti::coordinator::test
