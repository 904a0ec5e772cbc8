#pragma once
// Where the job's coordinator is. A launcher or rank 0 runs it; the other ranks find it by the launcher's variables or
// at a store that they share.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coordinator/server.h"
#include "core/job_secret.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// What a coordinator that this rank runs needs.
struct CoordinatorOptions {
  int world_size = 1;
  std::chrono::milliseconds connect_timeout{0};
  std::chrono::milliseconds heartbeat_timeout{0};
  std::chrono::milliseconds deadlock_timeout{0};
};

struct CoordinatorPlace {
  std::string host;  ///< as in coordinator::ClientOptions
  std::uint16_t port = 0;
  JobSecretPtr secret{};
  std::unique_ptr<coordinator::Server> server{};  ///< null on ranks that do not run the coordinator
  int owner = 0;                                  ///< the rank that does; -1 for a launcher
};

/// By the variables of the launcher. Rank 0 starts the coordinator, unless the launcher runs it. Throws
/// std::system_error (EADDRINUSE: the port is in use).
CoordinatorPlace coordinator_of_job(const Environment& environment, const JobSecretPtr& secret,
                                    const CoordinatorOptions& options);

/// At a store. Rank 0 starts the coordinator at `host` and stores its address under `key`; unless the ranks share a
/// secret, with a new one. `host` is used on rank 0 only. Throws what the store throws, and std::exception.
CoordinatorPlace coordinator_at_store(c10d::Store& store, const std::string& key, int rank, const std::string& host,
                                      const JobSecretPtr& secret, const CoordinatorOptions& options);

}  // namespace tutti::comm
