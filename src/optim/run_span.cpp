#include "optim/run_span.h"

namespace tutti {

void check_warmup(const char* schedule, std::int64_t warmup_steps) {
  require_argument(warmup_steps >= 0, schedule, value_of("warmup_steps", warmup_steps) + ", must not be negative");
}

double warmup_factor(std::int64_t position, std::int64_t warmup_steps) {
  return warmup_steps == 0 ? 1.0 : static_cast<double>(position) / static_cast<double>(warmup_steps);
}

RunSpan::RunSpan(const char* schedule, std::int64_t warmup_steps, std::int64_t total_steps)
    : warmup_steps_(warmup_steps), total_steps_(total_steps) {
  require_argument(0 <= warmup_steps && warmup_steps <= total_steps && total_steps > 0, schedule,
                   value_of("warmup_steps", warmup_steps) + " and " + value_of("total_steps", total_steps) +
                       ", needs 0 <= warmup_steps <= total_steps and total_steps > 0");
}

double RunSpan::progress(std::int64_t position) const {
  if (position >= total_steps_) return 1.0;
  return static_cast<double>(position - warmup_steps_) / static_cast<double>(total_steps_ - warmup_steps_);
}

}  // namespace tutti
