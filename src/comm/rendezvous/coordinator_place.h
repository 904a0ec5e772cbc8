#pragma once
// Where the job's coordinator is. A launcher or rank 0 runs it; the other ranks find it by the launcher's variables or
// at a store that they share.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coordinator/server.h"
#include "core/file_descriptor.h"
#include "core/job_secret.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// What a coordinator that this rank runs needs.
struct CoordinatorOptions {
  int world_size = 1;
  std::chrono::milliseconds connect_timeout{0};
  coordinator::JobTimeouts timeouts{};
};

struct CoordinatorPlace {
  std::string host;  ///< as in coordinator::ClientOptions
  std::uint16_t port = 0;
  JobSecretPtr secret{};
  bool is_secret_new = false;  ///< other ranks know it only from the address
  int owner = 0;               ///< the rank that runs the coordinator; -1 for a launcher
  // Only at the owner.
  std::string job{};                              ///< as in coordinator::ServerOptions
  FileDescriptor listening{};                     ///< until start_coordinator(): other ranks may connect before
  std::unique_ptr<coordinator::Server> server{};  ///< from start_coordinator()
};

/// By the variables of the launcher. Rank 0 starts the coordinator, unless the launcher runs it. Throws
/// std::system_error (EADDRINUSE: the port is in use).
CoordinatorPlace coordinator_of_job(const Environment& environment, const JobSecretPtr& secret,
                                    const CoordinatorOptions& options);

/// Listens at `host`, at a free port. Unless the job has a secret, makes one. Throws std::system_error.
CoordinatorPlace listen_for_coordinator(const std::string& host, const JobSecretPtr& secret);
/// The address as one word for each of host, port and new secret.
std::string address_of(const CoordinatorPlace& place);
/// Starts the coordinator at a place that listens.
CoordinatorPlace start_coordinator(CoordinatorPlace place, const CoordinatorOptions& options);
/// Reads the text of address_of(); nullopt if it is none. `secret` is that of the job, or null.
std::optional<CoordinatorPlace> parse_address(const std::string& address, const JobSecretPtr& secret);

/// At a store. Rank 0 starts the coordinator at `host` and stores its address under `key`; unless the ranks share a
/// secret, with a new one. `host` is used on rank 0 only. Throws what the store throws, and std::exception.
CoordinatorPlace coordinator_at_store(c10d::Store& store, const std::string& key, int rank, const std::string& host,
                                      const JobSecretPtr& secret, const CoordinatorOptions& options);

}  // namespace tutti::comm
