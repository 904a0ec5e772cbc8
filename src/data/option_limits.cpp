#include "data/option_limits.h"

#include "tutti/core/error.h"

namespace tutti {

void require_option(bool condition, const std::string& message) {
  if (!condition) throw UsageError(message);
}

void require_at_most(const std::string& option, std::int64_t value, std::int64_t most) {
  if (value <= most) return;
  throw UsageError(option + " is " + std::to_string(value) + ": it must be at most " + std::to_string(most));
}

void require_prefetch_factor(std::int64_t value) {
  if (value < 1) throw UsageError("prefetch_factor is " + std::to_string(value) + ": it must be at least 1");
  require_at_most("prefetch_factor", value, most_batches_ahead);
}

void require_micro_batch(std::int64_t batch_size, std::int64_t of_rank, int world_size) {
  if (batch_size == of_rank) return require_at_most("batch_size", batch_size, most_samples_in_micro_batch);
  require_at_most("batch_size", batch_size, most_samples_in_micro_batch * world_size);
}

}  // namespace tutti
