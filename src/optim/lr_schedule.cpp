#include "tutti/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {

LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps) {
  if (warmup_steps < 0 || total_steps <= 0 || warmup_steps > total_steps) {
    throw UsageError("cosine_with_warmup(" + std::to_string(warmup_steps) + ", " + std::to_string(total_steps) +
                     "): needs 0 <= warmup_steps <= total_steps and total_steps > 0");
  }
  return [warmup = static_cast<double>(warmup_steps), total = static_cast<double>(total_steps)](std::int64_t position) {
    const auto now = static_cast<double>(position);
    if (now < warmup) return now / std::max(1.0, warmup);
    const double progress = (now - warmup) / std::max(1.0, total - warmup);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(1.0, progress))));
  };
}

Scheduler::Scheduler(Optimizer optimizer, LrSchedule schedule, ScheduleUnit unit)
    : optimizer_(std::move(optimizer)), schedule_(std::move(schedule)), unit_(unit) {
  for (const auto& group : optimizer_.inner().param_groups()) state_->base_rates.push_back(group.options().get_lr());
  apply();
}

void Scheduler::step() {
  const bool at_window_end = optimizer_.reducer()->at_window_end();
  if (!at_window_end && unit_ == ScheduleUnit::optimizer_step) return;
  ++state_->position;
  if (at_window_end) apply();
}

std::vector<double> Scheduler::last_rates() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.inner().param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void Scheduler::apply() {
  const double factor = schedule_(state_->position);
  auto& groups = optimizer_.inner().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(state_->base_rates[i] * factor);
}

}  // namespace tutti
