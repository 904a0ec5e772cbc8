#include "tutti/data/data_loader_options.h"

#include <array>
#include <string>

#include "data/option_limits.h"
#include "tutti/core/error.h"
#include "tutti/detail/data/loader_group.h"

namespace tutti {

std::string describe(const DataLoaderOptions& options, std::int64_t dataset_size) {
  std::string words = std::to_string(dataset_size) + " samples in batches of " + std::to_string(options.batch_size);
  if (options.split_batches) words += " split over the ranks";
  constexpr std::array sharding{"", ", sharding by batches", ", sharding blocks_by_window"};
  words += sharding.at(static_cast<std::size_t>(options.sharding));
  if (options.shuffle) words += ", shuffled with seed " + std::to_string(options.seed.value_or(0));
  if (options.sampler) words += ", by a sampler";
  if (options.batch_sampler) words += ", by a batch sampler";
  if (options.drop_last) words += ", drop_last";
  if (!options.even_batches) words += ", without even_batches";
  if (options.evaluation) words += ", for evaluation";
  return words;
}

ShardOptions shard_options(const DataLoaderOptions& options, std::int64_t dataset_size, int rank, int world_size,
                           std::int64_t accumulation_steps) {
  if (options.batch_sampler && (options.batch_size != 1 || options.split_batches)) {
    throw UsageError("a batch sampler returns whole batches: leave batch_size and split_batches unset");
  }
  if (options.num_workers < 0) {
    throw UsageError("num_workers is " + std::to_string(options.num_workers) + ": it must not be negative");
  }
  require_at_most("num_workers", options.num_workers, most_workers);
  require_prefetch_factor(options.prefetch_factor);
  const auto batch_size = options.split_batches ? split_over(options.batch_size, world_size) : options.batch_size;
  require_micro_batch(options.batch_size, batch_size, world_size);
  return {.dataset_size = dataset_size,
          .rank = rank,
          .world_size = world_size,
          .shuffle = options.shuffle,
          .seed = options.seed.value_or(0),
          .sharding = options.sharding,
          .drop_last = options.drop_last,
          .batch_size = batch_size,
          .accumulation_steps = accumulation_steps};
}

}  // namespace tutti
