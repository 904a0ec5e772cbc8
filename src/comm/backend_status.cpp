#include "tutti/detail/comm/backend_status.h"

#include <exception>
#include <functional>

#include "comm/device/nccl.h"
#include "comm/shm/segment.h"
#include "comm/transport/mpi/mpi_environment.h"
#include "core/socket.h"
#include "device/devices.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// The status of a backend that is usable if `attempt` does not throw.
BackendStatus status_of(const std::string& name, const std::function<void()>& attempt) {
  try {
    attempt();
    return {.name = name, .usable = true};
  } catch (const std::exception& error) {
    return {.name = name, .usable = false, .reason = error.what()};
  }
}

}  // namespace

std::vector<BackendStatus> backend_statuses() {
  const auto tcp = status_of("tcp", [] { listen_tcp("127.0.0.1"); });
  const auto shared_memory = status_of("shared_memory", [] {
    constexpr std::size_t some = 1 << 20;
    comm::SharedSegment::create(some);
  });
  auto hierarchical = shared_memory.usable ? tcp : shared_memory;
  hierarchical.name = "hierarchical";
  const auto mpi = status_of("mpi", [] { comm::require_mpi(read_environment().world_size); });
  const auto nccl = status_of("nccl", [] {
    if (const auto why = comm::nccl_unavailable_reason(); !why.empty()) throw UsageError(why);
  });
  const auto staged = status_of("staged", [] {
    const auto type = devices::accelerator_type();
    if (!type || devices::device_count(*type) == 0) throw UsageError("this process has no accelerator");
  });
  return {tcp, shared_memory, hierarchical, mpi, nccl, staged};
}

}  // namespace tutti
