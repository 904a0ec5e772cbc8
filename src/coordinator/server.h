#pragma once
// The coordinator of a job: one thread and one epoll instance. It holds the membership, key-value entries, failure
// reports and wait states, and pushes changes to the ranks. It uses no LibTorch, so that a launcher can run it.
#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/job.h"
#include "core/file_descriptor.h"
#include "core/job_secret.h"

namespace tutti::coordinator {

struct ServerOptions {
  FileDescriptor listening{};  ///< a socket that listens
  bool is_local = false;       ///< it is a Unix socket, for processes of this user
  JobSecretPtr secret{};
  int world_size = 1;
  std::string job{};          ///< its name: ranks of a job of another name are refused; empty if it has none
  JobTimeouts timeouts{};     ///< heartbeat 0: those of the rank that joins first
  Milliseconds linger{5000};  ///< how long the destructor waits; during unwinding 500 ms at most
};

/// Thread safe.
class Server {
 public:
  /// Starts the thread. Throws std::system_error.
  explicit Server(ServerOptions options);
  /// Waits, at most `linger` long, until all ranks that have come have left or failed, then closes all connections.
  ~Server() = default;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;  ///< 0 for a Unix socket
  /// No rank is present, and the destructor would not wait.
  bool has_finished() const;
  /// No further job begins: when no rank is present, closes all sockets, so that the address is free.
  void close_when_finished();
  /// The parent of a rank tells that its process has ended. Bytes that the rank has sent before are read first.
  void process_exited(int rank);

 private:
  class Loop;
  std::shared_ptr<Loop> loop_;
};

}  // namespace tutti::coordinator
