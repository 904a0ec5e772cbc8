#include "local_sgd/schedule.h"

namespace tutti::local_sgd {

Schedule::Schedule(const LocalSgdAlgorithmOptions& options)
    : local_steps_(options.local_steps),
      warmup_steps_(options.warmup_steps),
      inside_(options.node_sync_steps),
      fragments_(options.streaming.fragments),
      overlap_(options.streaming.overlap_steps) {}

// Fragment f is sent after the step that ends part f of a round. A round has at least as many steps as fragments.
std::optional<int> Schedule::fragment_at(std::int64_t step) const {
  if (step < 1) return std::nullopt;
  const std::int64_t within = (step - 1) % local_steps_ + 1;
  const std::int64_t fragment = (within * fragments_ - 1) / local_steps_;
  if ((fragment + 1) * local_steps_ / fragments_ != within) return std::nullopt;
  return static_cast<int>(fragment);
}

DueActions Schedule::next() const {
  DueActions due;
  if (warming_up()) {
    due.warms_up = true;
    due.ends_warmup = warmed_ + 1 == warmup_steps_;
    return due;
  }
  const std::int64_t step = position_ + 1;
  due.sends = fragment_at(step);
  due.applies = fragment_at(step - overlap_);
  due.inside_node = inside_ > 0 && step % inside_ == 0 && !due.sends;
  return due;
}

void Schedule::advance() {
  ++(warming_up() ? warmed_ : position_);
}

void Schedule::restart() {
  position_ = 0;
}

bool Schedule::move_to(std::int64_t warmed, std::int64_t position) {
  if (warmed < 0 || warmed > warmup_steps_ || position < 0 || (warmed < warmup_steps_ && position > 0)) return false;
  warmed_ = warmed;
  position_ = position;
  return true;
}

}  // namespace tutti::local_sgd
