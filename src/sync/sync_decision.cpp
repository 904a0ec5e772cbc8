#include "sync/sync_decision.h"

#include <utility>

namespace tutti::sync {

void SyncDecision::enter_no_sync() {
  ++no_sync_depth_;
  annotated_ = true;
}

bool SyncDecision::begin_pass(std::int64_t pass, const std::optional<AccumulationStep>& scope) {
  const bool requested = synchronizes({.policy = policy_,
                                       .pass = pass,
                                       .triggered = std::exchange(triggered_, false),
                                       .no_sync = no_sync_depth_ > 0,
                                       .annotated = annotated_,
                                       .in_accumulate = scope.has_value(),
                                       .accumulate_syncs = scope && scope->syncs,
                                       .sync_each_batch = scope && scope->sync_each_batch},
                                      automatic_);
  return requested && !reproducible_;
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
