#include "sync/workload.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

namespace tutti::bench {
namespace {

constexpr std::uint64_t model_seed = 0;
// c10d and tutti rebuild buckets after the first window, and the automatic policy learns in three windows.
constexpr int warm_up_windows = 4;

Epoch make_epoch(const SyncOptions& options, int batches, int rank, int world_size, std::uint64_t seed) {
  const auto rows = static_cast<std::int64_t>(world_size) * batches * options.batch_size;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto tokens = at::randint(options.vocabulary, {rows, options.context}, generator, at::kLong);
  const auto mine = tokens.slice(0, rank, rows, world_size).contiguous();
  Epoch epoch{TokenDataset(tokens), {}};
  for (int i = 0; i < batches; ++i) {
    const bool ends_window = (i + 1) % options.steps == 0 || i + 1 == batches;
    epoch.batches.push_back({mine.narrow(0, i * options.batch_size, options.batch_size), ends_window});
  }
  return epoch;
}

}  // namespace

Workload::Workload(const SyncOptions& options, int rank, int world_size)
    : steps_(options.steps),
      batch_size_(options.batch_size),
      model_{.vocabulary = options.vocabulary,
             .width = options.width,
             .layers = options.layers,
             .context = options.context,
             .learned_positions = false,
             .final_norm = false},
      warm_up_(make_epoch(options, warm_up_windows * options.steps, rank, world_size, 1)),
      timed_(make_epoch(options, options.batches, rank, world_size, 2)) {}

gpt::Gpt Workload::make_model() const {
  torch::manual_seed(model_seed);
  return gpt::Gpt(model_);
}

at::Tensor loss_of(gpt::Gpt& model, const at::Tensor& tokens) {
  return gpt::gpt_loss(model, tokens, tokens);
}

}  // namespace tutti::bench
