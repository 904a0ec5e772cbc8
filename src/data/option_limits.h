#pragma once
// Checks of loaders' options, and the largest values. Larger ones overflow sums of samples, or exhaust memory and
// threads.
#include <cstdint>
#include <string>

namespace tutti {

constexpr std::int64_t most_samples_in_micro_batch = 2'147'483'647;
constexpr std::int64_t most_accumulation_steps = 2'147'483'647;
constexpr std::int64_t most_workers = 1024;
constexpr std::int64_t most_batches_ahead = 16'384;
/// Of an epoch on a rank: a stream's number of batches is unknown.
constexpr std::int64_t most_skipped_batches = std::int64_t{1} << 40;
constexpr std::int64_t last_epoch = std::int64_t{1} << 62;

/// Throws UsageError with this message if the condition is false.
void require_option(bool condition, const std::string& message);

/// Throws UsageError with the option's name, its value and the limit.
void require_at_most(const std::string& option, std::int64_t value, std::int64_t most);

void require_prefetch_factor(std::int64_t value);

/// The same for an option batch_size that gives each of `world_size` ranks `of_rank` samples.
void require_micro_batch(std::int64_t batch_size, std::int64_t of_rank, int world_size);

}  // namespace tutti
