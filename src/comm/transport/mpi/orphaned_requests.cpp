#include "comm/transport/mpi/orphaned_requests.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "comm/transport/mpi/mpi_environment.h"
#include "core/in_this_process.h"

namespace tutti::comm {
namespace {

/// How long a process waits at its exit for the other ranks of a job with a failure. If it exits before them, mpirun
/// terminates them all.
constexpr std::chrono::milliseconds finalize_timeout = std::chrono::seconds(20);

bool free_if_idle(const MpiApi& api, MpiRequest& request) {
  if (request.message == nullptr) return true;
  if (!api.is_idle(request.message)) return false;
  api.free_message(std::exchange(request.message, nullptr));
  return true;
}

}  // namespace

void erase_idle(const MpiApi& api, MpiRequests& requests) {
  std::erase_if(requests, [&](const auto& request) { return free_if_idle(api, *request); });
}

const std::shared_ptr<OrphanedRequests>& OrphanedRequests::of_process() {
  static const auto instance = std::make_shared<OrphanedRequests>();
  return instance;
}

void OrphanedRequests::add(const MpiApi& api, MpiGroup* group, MpiRequests sent, MpiRequests received) {
  const std::lock_guard lock(mutex_);
  closing_groups_.push_back({.group = group, .sent = std::move(sent), .received = std::move(received)});
  std::erase_if(closing_groups_, [&](ClosingGroup& closing) {
    erase_idle(api, closing.sent);
    std::erase_if(closing.received, [&](const auto& request) {
      if (!free_if_idle(api, *request)) return false;
      closing.in_order = closing.in_order && *request->block.data == std::byte{1};
      return true;
    });
    if (!closing.sent.empty() || !closing.received.empty()) return false;
    if (closing.in_order) {
      api.free_group(closing.group);
    } else {
      ++unreleased_;
    }
    return true;
  });
}

void OrphanedRequests::keep(MpiRequests unfinished) {
  const std::lock_guard lock(mutex_);
  std::ranges::move(unfinished, std::back_inserter(orphans_));
}

std::size_t OrphanedRequests::kept() {
  const std::lock_guard lock(mutex_);
  return orphans_.size();
}

std::size_t OrphanedRequests::unreleased_groups() {
  const std::lock_guard lock(mutex_);
  return closing_groups_.size() + unreleased_;
}

void finalize_mpi_at_exit() {
  OrphanedRequests::of_process();  // lives longer than what is registered after it
  static const InThisProcess in_this_process;
  std::atexit([] {
    if (!in_this_process) return;
    const bool failed = OrphanedRequests::of_process()->failed();
    mpi_api().finalize(failed ? static_cast<long>(finalize_timeout.count()) : -1);
  });
}

}  // namespace tutti::comm
