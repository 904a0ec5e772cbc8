#pragma once
// The options with which ranks connect.
#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

#include "tutti/comm/c10d_backend_factory.h"

namespace tutti {

/// How ranks connect. Every rank must pass the same values, except for `device`.
struct CommunicatorOptions {
  /// The backend:
  /// - "auto": shared memory on one node. On several nodes "hierarchical" if every node holds the same power of two of
  ///   consecutive ranks, otherwise TCP. The variable TUTTI_BACKEND replaces "auto" (docs/launching.md).
  /// - "tcp": messages over TCP only.
  /// - "shared_memory": shared memory only; all ranks must be on one node.
  /// - "hierarchical": shared memory inside nodes, TCP between them. Every node must hold the same number of
  ///   consecutive ranks.
  /// - "mpi": as "auto", with MPI instead of TCP. "mpi_only": MPI without shared memory.
  /// The following backends exchange memory of `device`, and use "auto" for everything else. If `device` is an
  /// accelerator, "auto" is "nccl" where every rank has a CUDA device of its own and tutti was built with NCCL, else
  /// "staged".
  /// - "nccl": NCCL, for CUDA devices. Each rank of a node needs a device of its own.
  /// - "staged": tensors pass through pinned CPU memory and the host's backend. Serves any device, and ranks that share
  ///   one. Sums have the bits of the CPU. "staged:NAME" does so over the backend NAME, for example "staged:tcp".
  /// - "c10d:gloo": the Gloo backend of c10d, for CUDA devices, in a build that found Gloo's headers.
  /// Connecting throws UsageError if the backend is not available, or cannot exchange memory of `device`.
  std::string backend = "auto";
  /// The device of this rank; may differ between ranks. Without a number: the number is the local rank modulo the
  /// number of devices that the process sees. Unset, or the CPU: the backend is chosen for CPU memory. An Accelerator
  /// sets it to AcceleratorOptions::device.
  std::optional<c10::Device> device = std::nullopt;
  /// A c10d backend of the program. Collectives of tensors on devices of the type device_backend->device use it; all
  /// other operations use `backend`, which must be one for CPU memory.
  std::optional<C10dBackendFactory> device_backend = std::nullopt;
  /// The timeout of every operation that does not set its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// The timeout of connecting: reaching the coordinator, and waiting for all ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// The time after which a process that is stopped, or a node that misses heartbeats, has failed. A log line names the
  /// process or node after 2 s. If a program leaves the default, TUTTI_HEARTBEAT_TIMEOUT (seconds) replaces it. A
  /// process that exits has failed at once.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(15);
  /// The time after which all ranks throw MismatchError if each of them waits in a call that others do not make. They
  /// throw only if no rank has made progress and no other thread of the program has used CPU time during this time. A
  /// log line names the calls after 2 s. Zero: no error before `timeout`. If a program leaves the default,
  /// TUTTI_DEADLOCK_TIMEOUT (seconds) replaces it.
  std::chrono::milliseconds deadlock_timeout = std::chrono::seconds(15);
  /// Whether messages between ranks over TCP are encrypted: TLS 1.3 with the job's secret (docs/launching.md). If a
  /// program leaves it false, TUTTI_ENCRYPTION=1 replaces it. Connecting throws UsageError if the job has no secret, if
  /// ranks disagree, and if MPI or a c10d backend for devices would send messages between nodes.
  bool encryption = false;
};

}  // namespace tutti
