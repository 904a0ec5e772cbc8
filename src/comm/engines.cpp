#include "tutti/comm/engines.h"

#include <unistd.h>

#include <exception>
#include <functional>

#include "comm/choose_engine.h"
#include "comm/local_meeting.h"
#include "comm/mpi_job.h"
#include "comm/shared_segment.h"
#include "tutti/core/environment.h"

namespace tutti {
namespace {

/// The status of an engine that can be used if `attempt` does not throw.
EngineStatus status_of(const std::string& name, const std::function<void()>& attempt) {
  try {
    attempt();
    return {.name = name, .usable = true};
  } catch (const std::exception& error) {
    return {.name = name, .usable = false, .reason = error.what()};
  }
}

}  // namespace

std::vector<EngineStatus> engine_statuses() {
  const auto gloo = status_of("gloo", [] { ::close(comm::listen_on_loopback().descriptor); });
  const auto shared_memory = status_of("shared_memory", [] {
    constexpr std::size_t some = 1 << 20;
    comm::SharedSegment::create(some);
  });
  auto hierarchical = shared_memory.usable ? gloo : shared_memory;
  hierarchical.name = "hierarchical";
  const auto mpi = status_of("mpi", [] { comm::require_mpi_job(read_environment().world_size); });
  return {gloo, shared_memory, hierarchical, mpi, {.name = "nccl", .usable = false, .reason = comm::why_no_nccl()}};
}

}  // namespace tutti
