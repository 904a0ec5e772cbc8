#pragma once
// The options with which ranks connect.
#include <chrono>
#include <optional>
#include <string>

#include "tutti/comm/c10d_backend_factory.h"

namespace tutti {

/// How ranks connect. Every rank must pass the same values.
struct CommunicatorOptions {
  /// The backend:
  /// - "auto": shared memory on one node. On several nodes "hierarchical" if every node holds the same power of two of
  ///   consecutive ranks, otherwise Gloo. The variable TUTTI_BACKEND replaces "auto" (docs/launching.md).
  /// - "gloo": Gloo only.
  /// - "shared_memory": shared memory only; all ranks must be on one node.
  /// - "hierarchical": shared memory inside nodes, Gloo between them. Every node must hold the same number of
  ///   consecutive ranks.
  /// - "mpi": as "auto", with MPI instead of Gloo. "mpi_only": MPI without shared memory.
  /// - "nccl": gradients on CUDA devices over NCCL, the rest as "auto". Each rank of a node needs a device.
  /// Connecting throws UsageError if the backend is not available.
  std::string backend = "auto";
  /// Sums of tensors on devices of its type use this backend; all other operations use `backend`.
  std::optional<C10dBackendFactory> device_backend = std::nullopt;
  /// The timeout of every operation that does not set its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// The timeout of connecting: reaching the master and waiting for all ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// The time after which a process that is stopped, or a node that misses heartbeats, has failed. A log line reports
  /// it after 2 s. If a program leaves the default, TUTTI_HEARTBEAT_TIMEOUT (seconds) replaces it. A process that exits
  /// is a failure at once.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(15);
  /// The time after which ranks that wait in calls that other ranks do not make throw MismatchError. During this time
  /// no rank may have made progress, and no other thread of the program may have used CPU time. A log line reports the
  /// calls after 2 s. Zero: no error before `timeout`. If a program leaves the default, TUTTI_DEADLOCK_TIMEOUT
  /// (seconds) replaces it.
  std::chrono::milliseconds deadlock_timeout = std::chrono::seconds(15);
};

}  // namespace tutti
