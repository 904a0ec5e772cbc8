#include "sync/sync_decision.h"

#include <utility>

namespace tutti::sync {

void SyncDecision::enter_no_sync() {
  ++no_sync_depth_;
  annotated_ = true;
}

bool SyncDecision::begin_pass(std::int64_t pass, const std::optional<AccumulationStep>& scope) {
  const bool triggered = std::exchange(triggered_, false);
  if (reproducible_) return false;
  if (triggered) return true;
  if (no_sync_depth_ > 0) return false;
  if (scope) return scope->syncs || scope->sync_each_batch;
  if (policy_ != SyncPolicy::automatic || annotated_) return true;
  return automatic_.synchronizes(pass);
}

std::optional<std::int64_t> SyncDecision::on_early_step() {
  if (policy_ != SyncPolicy::automatic || std::exchange(early_step_reported_, true)) return std::nullopt;
  return automatic_.expected();
}

void SyncDecision::save(StateDict& state) const {
  state.set("expected_passes", automatic_.expected());
  state.set("annotated", annotated_);
}

void SyncDecision::load(const StateDict& state) {
  const auto expected = state.get<std::int64_t>("expected_passes");
  annotated_ = state.get<bool>("annotated");
  automatic_.expect(expected);
}

}  // namespace tutti::sync
