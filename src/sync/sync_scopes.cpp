#include "tutti/detail/sync/sync_scopes.h"

#include "tutti/detail/sync/reducer.h"

namespace tutti {

NoSyncScope::NoSyncScope(std::vector<std::shared_ptr<Reducer>> reducers) : reducers_(std::move(reducers)) {
  for (const auto& reducer : reducers_) reducer->enter_no_sync();
}

NoSyncScope::~NoSyncScope() {
  for (const auto& reducer : reducers_) reducer->leave_no_sync();
}

AccumulateScope::AccumulateScope(const std::vector<Member>& members) {
  const auto passes = members.size() > 1 ? std::make_shared<std::atomic<std::int64_t>>(0) : nullptr;
  try {
    for (const Member& member : members) {
      AccumulationStep step = member.step;
      step.passes = passes;
      member.reducer->enter_accumulate(step);
      reducers_.push_back(member.reducer);
    }
  } catch (...) {
    for (const auto& entered : reducers_) entered->leave_accumulate(true);
    throw;
  }
}

AccumulateScope::~AccumulateScope() noexcept(false) {
  const bool unwinding = std::uncaught_exceptions() > exceptions_;
  // Closes all scopes even if one throws, then rethrows the first exception.
  std::exception_ptr first;
  for (const auto& reducer : reducers_) {
    try {
      reducer->leave_accumulate(unwinding || first);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first && !unwinding) std::rethrow_exception(first);
}

}  // namespace tutti
