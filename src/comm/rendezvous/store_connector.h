#pragma once
// Connects this rank to the job's store, which is c10d's TCPStore and accepts every client that reaches its port.
//
// On one node the store listens on the loopback interface. With several nodes and a secret it does so too, behind an
// authentication proxy: rank 0 runs the server proxy, and every other rank runs a client proxy that proves the secret
// to it. Without a secret the store listens on the network.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/file_descriptor.h"
#include "core/job_secret.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// The store could not be reached, or the connection to it was lost.
struct StoreUnreachable {
  std::string cause;
};

struct PortInUse {
  std::string cause;
};

/// Whether this rank serves the store of the job.
inline bool rank_serves_store(const Environment& environment) {
  return environment.rank == 0 && !environment.agent_store;
}

class AuthProxy;

class StoreConnector {
 public:
  /// `secret` is null where none is asked for. Throws UsageError where this rank and the one that serves the store do
  /// not share it, StoreUnreachable, PortInUse, std::exception.
  StoreConnector(const Environment& environment, const JobSecretPtr& secret, std::chrono::milliseconds timeout);

  /// A connection to the store; the first one of the rank that serves it also is the store. It keeps what it needs.
  /// Throws std::exception.
  c10::intrusive_ptr<c10d::Store> connect(std::chrono::milliseconds timeout);

 private:
  void take_port(const Environment& environment);
  void start_server_proxy(const Environment& environment, const JobSecretPtr& secret);
  void start_client_proxy(const std::string& host, std::uint16_t port, const JobSecretPtr& secret,
                          std::chrono::milliseconds timeout);
  void connect_at_agent(const Environment& environment, const JobSecretPtr& secret, std::chrono::milliseconds timeout);

  std::string host_;
  std::uint16_t port_;
  bool serves_;                       // the next connection is the store
  FileDescriptor listening_;          // of the store
  std::shared_ptr<AuthProxy> proxy_;  // the server proxy, or the client proxy of this rank
  bool is_server_proxy_ = false;
  bool single_node_;
  int world_size_;
  bool may_be_proxy_ = false;  // what this rank, which has no secret, connects to
};

/// Whether this rank, which has no secret, is asked for one where the store should be.
bool server_requires_auth(const Environment& environment);

}  // namespace tutti::comm
