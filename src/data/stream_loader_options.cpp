#include "tutti/data/data_loader_options.h"

#include <string>

#include "data/option_limits.h"
#include "tutti/core/error.h"

namespace tutti {

std::string describe(const StreamLoaderOptions& options) {
  std::string words = options.sharding == StreamSharding::slices ? "slices of a stream" : "one stream per rank";
  words += " in batches of " + std::to_string(options.batch_size);
  if (options.split_batches) words += " split over the ranks";
  if (options.drop_last) words += ", drop_last";
  if (!options.even_batches) words += ", without even_batches";
  if (options.evaluation) words += ", for evaluation";
  return words;
}

std::int64_t checked_batch_size(const StreamLoaderOptions& options, const LoaderGroup& group) {
  require_option(group.world_size >= 1 && group.rank >= 0 && group.rank < group.world_size,
                 "rank " + std::to_string(group.rank) + " of " + std::to_string(group.world_size) + " cannot be");
  require_option(
      options.num_workers == 0 || options.num_workers == 1,
      "num_workers is " + std::to_string(options.num_workers) + ": a stream is read in order, so it must be 0 or 1");
  require_prefetch_factor(options.prefetch_factor);
  require_option(
      options.sharding == StreamSharding::slices || group.world_size == 1 || group.agreement,
      "StreamSharding::per_rank: ranks must agree on where their streams end, and no agreement is set. Make the loader "
      "with Accelerator::data_loader(), or set LoaderGroup::agreement");
  const auto batch_size = options.split_batches ? split_over(options.batch_size, group.world_size) : options.batch_size;
  require_option(batch_size >= 1, "batch_size is " + std::to_string(options.batch_size) + ": it must be at least 1");
  require_micro_batch(options.batch_size, batch_size, group.world_size);
  return batch_size;
}

}  // namespace tutti
