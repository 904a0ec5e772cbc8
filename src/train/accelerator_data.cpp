// Accelerator: data loaders.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "train/accelerator_state.h"
#include "train/reproducible.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

namespace {

LoaderAgreement agreement_over(const Communicator& communicator) {
  return [communicator](const std::vector<std::int64_t>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    const at::Tensor all = at::empty({communicator.size(), count}, at::kLong);
    const Work work = communicator.all_gather(all, at::tensor(values), comm::internal_call("data loader"));
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
constexpr char loader_made = 'm';
constexpr char loader_failed = 'f';

}  // namespace

LoaderGroup Accelerator::loader_group() {
  if (num_processes() > 1 && !state_->loader_agreement) {
    state_->loader_agreement = agreement_over(state_->communicator.duplicate("data_loader()"));
  }
  if (num_processes() > 1 && state_->reducers.empty() && !state_->communicator_exposed &&
      !state_->unprepared_training) {
    state_->unprepared_training = std::make_shared<UnpreparedTrainingDetector>();
    state_->loader_stack->before_batches([watch = std::weak_ptr(state_->unprepared_training), ranks = num_processes()] {
      if (const auto watching = watch.lock()) watching->check(ranks);
    });
  }
  return {.rank = rank(),
          .world_size = num_processes(),
          .accumulation_steps = state_->plugin.num_steps,
          .loader = state_->loaders_made++,
          .stack = state_->loader_stack,
          .agreement = state_->loader_agreement};
}

void Accelerator::check_same_loader(const std::function<std::string()>& make) {
  std::exception_ptr error_here;
  std::string answer;
  try {
    answer = loader_made + make();
  } catch (const std::exception& error) {
    error_here = std::current_exception();
    answer = loader_failed + std::string(error.what());
  }
  const auto all = state_->prepare_communicator.all_gather_object(answer, comm::internal_call("data_loader"));
  if (error_here) std::rethrow_exception(error_here);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with(loader_made)) continue;
    std::string why = "rank " + std::to_string(rank) + " failed to make its data loader: ";
    why += all[rank].substr(1);
    throw PeerError(why, {static_cast<int>(rank)});
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::string why = "data_loader(): rank 0 reads " + all[0].substr(1) + "; rank " + std::to_string(rank);
    why += " reads " + all[rank].substr(1);
    why +=
        ": pass the same dataset and options on all ranks, or a stream with StreamSharding::per_rank for data of a "
        "rank's own";
    throw MismatchError(why);
  }
}

DataLoaderOptions Accelerator::loader_options(DataLoaderOptions options) const {
  if (!options.device) options.device = state_->device;
  if (!options.seed) options.seed = state_->loader_seed;
  if (!state_->reproducible || options.evaluation) return options;
  if (options.sampler || options.batch_sampler || options.split_batches || options.sharding == Sharding::batches) {
    throw UsageError(
        "data_loader(): reproducible training shards the dataset in blocks by window: set no sampler, batch_sampler, "
        "split_batches or other sharding");
  }
  options.sharding = Sharding::blocks_by_window;
  return options;
}

StreamLoaderOptions Accelerator::loader_options(StreamLoaderOptions options) const {
  if (!options.device) options.device = state_->device;
  if (!state_->reproducible || options.evaluation) return options;
  throw UsageError("data_loader(): a stream cannot be sharded in blocks by window (reproducible)");
}

void Accelerator::check_whole_steps(const ShardOptions& options, bool evaluation) const {
  if (!state_->reproducible || evaluation) return;
  const std::int64_t step = options.batch_size * state_->reproducible->micro_batches;
  const std::int64_t rest = options.dataset_size % step;
  if (rest == 0) return;
  throw UsageError("data_loader(): " + std::to_string(options.dataset_size) + " samples do not fill steps of " +
                   std::to_string(step) + ", so that the last one would depend on the number of ranks: leave out " +
                   std::to_string(rest) + ", or set evaluation for a loader that is not for training (reproducible)");
}

void Accelerator::register_loader(const std::shared_ptr<Stateful>& cursor, std::string description, bool evaluation) {
  state_->end_registrations();
  state_->loaders.push_back({.cursor = cursor, .description = std::move(description), .evaluation = evaluation});
}

std::optional<LoaderPosition> Accelerator::loop_position() const {
  if (state_->loader_stack->empty()) return std::nullopt;
  return state_->loader_stack->innermost();
}

void Accelerator::set_loader_seed(std::uint64_t seed) {
  state_->loader_seed = seed;
}

void Accelerator::State::seed_micro_batch(const Reducer& reducer, std::int64_t scope) const {
  const auto window = std::ranges::find_if(reducers, [&](const auto& one) { return one.reducer.get() == &reducer; });
  at::manual_seed(micro_batch_seed(*reproducible, window - reducers.begin(), reducer.steps(),
                                   rank() * std::int64_t{plugin.num_steps} + scope));
}

JoinScope Accelerator::join_uneven_inputs(std::optional<bool> even_batches) {
  if (state_->local() && !state_->takes_local_steps()) {
    throw UsageError(
        "join_uneven_inputs() with ignored_parameters: their gradient is the mean of one rank's batches and has no "
        "filler batches. Leave even_batches on");
  }
  if (state_->local() || !state_->per_rank.empty()) {
    throw UsageError(
        "join_uneven_inputs() before the end of LocalSGD: a local step is the mean of one rank's batches and has no "
        "filler batches. Leave even_batches on");
  }
  return JoinScope(state_->loader_stack, even_batches);
}

}  // namespace tutti
