#include "comm/shm/last_operation.h"

#include <algorithm>
#include <chrono>

#include "comm/os/process.h"
#include "core/describe.h"

namespace tutti::comm {

void LastOperation::set(const Operation& operation) {
  serial_.store(operation.entry.serial, std::memory_order_relaxed);
  record_.store(operation.entry.record, std::memory_order_relaxed);
  process_.store(this_process().pid, std::memory_order_relaxed);
}

std::string LastOperation::describe(Deadline now) const {
  const flight::EntryId entry{.serial = serial_.load(std::memory_order_relaxed),
                              .record = record_.load(std::memory_order_relaxed)};
  if (entry.serial == 0) return "none";
  const auto operation = flight::read_entry(entry, process_.load(std::memory_order_relaxed));
  if (!operation) return "no longer in its flight record";
  const auto since = now.time_since_epoch() - std::chrono::nanoseconds(std::max(operation->called, operation->started));
  return flight::describe_call(*operation) + ", " +
         describe_duration(std::chrono::duration_cast<std::chrono::seconds>(
             std::max<Clock::duration>(since, Clock::duration::zero()))) +
         " ago";
}

}  // namespace tutti::comm
