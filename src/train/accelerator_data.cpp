// Accelerator: data loaders.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "train/registry.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

namespace {

LoaderAgreement agreement_over(const Communicator& communicator) {
  return [communicator](const std::vector<std::int64_t>& mine) {
    const auto count = static_cast<std::int64_t>(mine.size());
    const at::Tensor all = at::empty({communicator.size(), count}, at::kLong);
    const Work work = communicator.all_gather(all, at::tensor(mine), comm::internal_call("data loader"));
    return [all, work, count] {
      work.wait();
      std::vector<std::vector<std::int64_t>> ranks;
      for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
        const auto* first = all.const_data_ptr<std::int64_t>() + rank * count;
        ranks.emplace_back(first, first + count);
      }
      return ranks;
    };
  };
}

// The first character of the text that ranks exchange; the rest is a description or an error message.
constexpr char made = 'm';
constexpr char said_failed = 'f';

}  // namespace

LoaderGroup Accelerator::loader_group() {
  if (num_processes() > 1 && !loader_agreement_) {
    loader_agreement_ = agreement_over(communicator_.duplicate("data loaders"));
  }
  if (num_processes() > 1 && registry_->reducers.empty() && !registry_->communicator_exposed &&
      !registry_->unprepared_training) {
    registry_->unprepared_training = std::make_shared<UnpreparedTrainingDetector>();
    loaders_->before_batches([watch = std::weak_ptr(registry_->unprepared_training), ranks = num_processes()] {
      if (const auto watching = watch.lock()) watching->check(ranks);
    });
  }
  return {.rank = rank(),
          .world_size = num_processes(),
          .accumulation_steps = plugin_.num_steps,
          .stack = loaders_,
          .agreement = loader_agreement_};
}

void Accelerator::check_same_loader(const std::function<std::string()>& make) {
  std::exception_ptr mine;
  std::string said;
  try {
    said = made + make();
  } catch (const std::exception& error) {
    mine = std::current_exception();
    said = said_failed + std::string(error.what());
  }
  const auto all = prepare_communicator_.all_gather_object(said, comm::internal_call("data_loader"));
  if (mine) std::rethrow_exception(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with(made)) continue;
    std::string why = "rank " + std::to_string(rank) + " failed to make its data loader: ";
    why += all[rank].substr(1);
    throw PeerError(why, {static_cast<int>(rank)});
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::string why = "data_loader(): rank 0 reads " + all[0].substr(1) + "; rank " + std::to_string(rank);
    why += " reads " + all[rank].substr(1);
    why += ": pass the same dataset and options on all ranks";
    throw MismatchError(why);
  }
}

DataLoaderOptions Accelerator::reproducible(DataLoaderOptions options) const {
  if (!reproducible_) return options;
  if (options.sampler || options.batch_sampler || options.split_batches || options.sharding == Sharding::batches) {
    throw UsageError(
        "data_loader(): reproducible training shards the dataset in blocks by window: set no sampler, batch_sampler, "
        "split_batches or other sharding");
  }
  options.sharding = Sharding::blocks_by_window;
  return options;
}

void Accelerator::require_whole_steps(const ShardOptions& options) const {
  if (!reproducible_) return;
  const std::int64_t step = options.batch_size * reproducible_->micro_batches;
  const std::int64_t rest = options.dataset_size % step;
  if (rest == 0) return;
  throw UsageError("data_loader(): " + std::to_string(options.dataset_size) + " samples do not fill steps of " +
                   std::to_string(step) + ", so that the last one would depend on the number of ranks: leave out " +
                   std::to_string(rest) + " (reproducible)");
}

void Accelerator::refuse_reproducible_stream() const {
  if (reproducible_) throw UsageError("data_loader(): a stream cannot be sharded in blocks by window (reproducible)");
}

void Accelerator::seed_micro_batch(const Reducer& reducer, std::int64_t scope) {
  const auto& all = registry_->reducers;
  const auto window = std::ranges::find_if(all, [&](const auto& one) { return one.reducer.get() == &reducer; });
  at::manual_seed(micro_batch_seed(*reproducible_, window - all.begin(), reducer.steps(),
                                   rank() * std::int64_t{plugin_.num_steps} + scope));
}

JoinScope Accelerator::join_uneven_inputs(std::optional<bool> even_batches) {
  if (registry_->local()) {
    throw UsageError(
        "join_uneven_inputs() while ranks take local steps: a local step is the mean of one rank's batches and has no "
        "filler batches. Leave even_batches on");
  }
  return JoinScope(loaders_, even_batches);
}

}  // namespace tutti
