#pragma once
// How the ranks of one node learn the port that rank 0 chose, where the launcher gives none.
//
// Rank 0 answers at an abstract Unix socket named after the job. The name goes with the process, so nothing is left
// after a crash, and it reaches as far as the loopback interface does: to the processes of this network namespace.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tutti::comm {

/// A rank that connects logs for whom it waits after this time.
inline constexpr std::chrono::milliseconds absence_log_delay = std::chrono::seconds(10);

/// A socket that listens on a free loopback port. The caller owns it.
struct LoopbackSocket {
  int descriptor = -1;
  std::uint16_t port = 0;
};
LoopbackSocket listen_on_loopback();

/// Tells `port` to each other rank of the job called `job`, once, from a thread of its own, until it is destroyed.
class PortServer {
 public:
  /// Throws UsageError if another rank 0 of a job of that name is serving already.
  PortServer(const std::string& job, std::uint16_t port, int size);
  ~PortServer();
  PortServer(const PortServer&) = delete;
  PortServer& operator=(const PortServer&) = delete;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

/// What rank 0 tells this rank. Throws TimeoutError where it does not within `timeout`, UsageError where a process of
/// another user answers.
std::uint16_t query_port(const std::string& job, int rank, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
