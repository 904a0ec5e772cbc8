// gather_for_metrics() returns each sample of an epoch once. Accelerate's test_metrics.py, the 22 samples of
// test_distributed_data_loop.py, and cases that fail there.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "data/streams.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::gather_for_metrics_test {
namespace {

using Ints = std::vector<int>;

at::Tensor as_tensor(const Ints& numbers) {
  return at::tensor(numbers, at::kInt);
}

Ints as_ints(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int>(), tensor.const_data_ptr<int>() + tensor.numel()};
}

void append(Ints& numbers, const Ints& more) {
  numbers.insert(numbers.end(), more.begin(), more.end());
}

Ints sorted(Ints numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

/// The samples that a loop gathers.
template <typename Loader>
Ints gathered(const Accelerator& accelerator, Loader& loader) {
  Ints all;
  for (const auto& batch : loader) append(all, as_ints(accelerator.gather_for_metrics(as_tensor(batch))));
  return all;
}

TEST(CountedSamples, FollowFromTheLoopsPosition) {
  const auto count = [](const LoaderPosition& position, std::int64_t rows) {
    const auto counted = detail::counted_samples(&position, rows);
    return counted.error.empty() ? counted.count : -1;
  };
  EXPECT_EQ(count({.samples = 4}, 4), 4);
  EXPECT_EQ(count({.last_batch = true, .samples = 4, .repeated = 3}, 4), 1);
  EXPECT_EQ(count({.samples = 4, .filler = true}, 4), 0);
  EXPECT_EQ(count({.all_repeated = true}, 4), 0);
  EXPECT_EQ(count({}, 4), 4);  // a batch of unknown length that repeats nothing
  EXPECT_EQ(count({.samples = 4}, 5), -1);
  EXPECT_EQ(count({.samples = 4}, -1), -1);
  EXPECT_THROW(count({.uneven = true, .samples = 4}, 4), UsageError);
  EXPECT_FALSE(detail::counted_samples(nullptr, 4).error.empty());
}

const RankCase exact("metrics_exact", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  for (const int samples : {1, 2, 3, 7, 22, 82, 99}) {
    for (const int batch_size : {1, 2, 4, 16}) {
      SCOPED_TRACE(std::to_string(samples) + " samples in batches of " + std::to_string(batch_size));
      auto interleaved = accelerator.data_loader(Numbers(samples), {.batch_size = batch_size, .shuffle = true});
      EXPECT_EQ(sorted(gathered(accelerator, interleaved)), count_to(samples));
      EXPECT_EQ(sorted(gathered(accelerator, interleaved)), count_to(samples));  // the next epoch too
      auto batches =
          accelerator.data_loader(Numbers(samples), {.batch_size = batch_size, .sharding = Sharding::batches});
      EXPECT_EQ(gathered(accelerator, batches), count_to(samples));  // in the dataset's order
    }
  }
});
TEST(GatherForMetrics, GivesEverySampleOnce) {
  exact.on_threads({1, 2, 3});
}
const RankCase exact_22("metrics_22", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(Numbers(22), {.batch_size = 4});
  EXPECT_EQ(sorted(gathered(accelerator, loader)), count_to(22));
});
TEST(GatherForMetrics, GivesTwentyTwoSamplesOnProcessesToo) {
  exact_22.on_processes({1, 2, 3});
}

const RankCase options("metrics_options", [](const Communicator& communicator) {
  const int size = communicator.size();
  Accelerator accelerator({.communicator = communicator});
  auto split = accelerator.data_loader(Numbers(19), {.batch_size = 2 * size, .split_batches = true});
  EXPECT_EQ(sorted(gathered(accelerator, split)), count_to(19));
  auto workers = accelerator.data_loader(Numbers(19), {.batch_size = 3, .num_workers = 2});
  EXPECT_EQ(sorted(gathered(accelerator, workers)), count_to(19));
  auto dropped = accelerator.data_loader(Numbers(2 * size + 1), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(gathered(accelerator, dropped).size(), 2U * static_cast<unsigned>(size));
  // Without repeats: the last batches differ in length.
  auto uneven = accelerator.data_loader(Numbers(4 * size - 1), {.batch_size = 2, .even_batches = false});
  EXPECT_EQ(sorted(gathered(accelerator, uneven)), count_to(4 * size - 1));
  auto by_window = accelerator.data_loader(Numbers(17), {.batch_size = 2, .sharding = Sharding::blocks_by_window});
  EXPECT_EQ(sorted(gathered(accelerator, by_window)), count_to(17));
  auto sampled = accelerator.data_loader(Numbers(9), {.batch_size = 2, .sampler = [](std::int64_t) {
                                                        return std::vector<std::int64_t>{8, 1, 1, 5, 0};
                                                      }});
  EXPECT_EQ(sorted(gathered(accelerator, sampled)), (Ints{0, 1, 1, 5, 8}));
});
TEST(GatherForMetrics, GoesWithEveryOptionOfTheLoader) {
  options.on_threads({1, 2, 3});
}

const RankCase joined("metrics_joined", [](const Communicator& communicator) {
  const int size = communicator.size();
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(Numbers(2 * size + 1), {.batch_size = 2, .even_batches = false});
  if (size > 1) {
    // One rank has one more batch, so its last call would wait until the deadline.
    for (const auto& batch : loader) {
      EXPECT_THROW((void)accelerator.gather_for_metrics(as_tensor(batch)), UsageError);
      break;
    }
    auto short_loader = accelerator.data_loader(Numbers(1), {.batch_size = 2, .even_batches = false});
    for (const auto& batch : short_loader) {  // no batch on ranks above 0
      EXPECT_THROW((void)accelerator.gather_for_metrics(as_tensor(batch)), UsageError);
    }
  }
  const auto join = accelerator.join_uneven_inputs();
  EXPECT_EQ(sorted(gathered(accelerator, loader)), count_to(2 * size + 1));
});
TEST(GatherForMetrics, LeavesOutFillerBatches) {
  joined.on_threads({1, 2, 3});
}

const RankCase streams("metrics_streams", [](const Communicator& communicator) {
  const int size = communicator.size();
  Accelerator accelerator({.communicator = communicator});
  for (const int samples : {1, 2, 3, 10, 22}) {
    auto loader = accelerator.data_loader(Counting(samples), {.batch_size = 4});
    EXPECT_EQ(gathered(accelerator, loader), count_to(samples)) << samples;
  }
  // Batches that cannot be split: the loader repeats whole batches.
  auto blocks = accelerator.data_loader(CountingBlocks(4 * size + 1), {.batch_size = 2});
  Ints all;
  for (const auto& block : blocks) append(all, as_ints(accelerator.gather_for_metrics(as_tensor(block.numbers))));
  EXPECT_EQ(all, count_to(4 * size + 1));
});
TEST(GatherForMetrics, GivesStreamsOnceToo) {
  streams.on_threads({1, 2, 3});
}

/// A batch whose number of samples the loader cannot determine.
struct Sealed {
  Ints numbers;
};
class SealedStream {
 public:
  explicit SealedStream(int size) : numbers_(size) {}
  void reset() { numbers_.reset(); }
  std::optional<Sealed> get_batch(std::size_t batch_size) {
    auto numbers = numbers_.get_batch(batch_size);
    if (!numbers) return std::nullopt;
    return Sealed{std::move(*numbers)};
  }

 private:
  Counting numbers_;
};
const RankCase sealed("metrics_sealed", [](const Communicator& communicator) {
  const int size = communicator.size();
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(SealedStream(4 * size + 1), {.batch_size = 2});
  Ints all;
  for (const auto& batch : loader) append(all, as_ints(accelerator.gather_for_metrics(as_tensor(batch.numbers))));
  EXPECT_EQ(all, count_to(4 * size + 1));
});
TEST(GatherForMetrics, KnowsRepeatedBatchesOfUnknownLength) {
  sealed.on_threads({1, 2, 3});
}

const RankCase nested("metrics_nested", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto outer = accelerator.data_loader(Numbers(7), {.batch_size = 2});
  auto inner = accelerator.data_loader(Numbers(5), {.batch_size = 3});
  Ints outer_all;
  for (const auto& batch : outer) {
    EXPECT_EQ(sorted(gathered(accelerator, inner)), count_to(5));
    // A loop that the program left early does not count any more.
    for ([[maybe_unused]] const auto& unused : inner) break;
    append(outer_all, as_ints(accelerator.gather_for_metrics(as_tensor(batch))));
  }
  EXPECT_EQ(sorted(outer_all), count_to(7));
});
TEST(GatherForMetrics, CountsTheInnermostLoop) {
  nested.on_threads({1, 2, 3});
}

const RankCase resumed("metrics_resumed", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  const int size = communicator.size();
  auto loader = accelerator.data_loader(Numbers(22), {.batch_size = 2, .sharding = Sharding::batches});
  accelerator.skip_first_batches(loader, 2);
  Ints rest(static_cast<std::size_t>(22 - 4 * size));
  std::iota(rest.begin(), rest.end(), 4 * size);
  EXPECT_EQ(gathered(accelerator, loader), rest);
});
TEST(GatherForMetrics, GivesWhatIsLeftAfterSkippedBatches) {
  resumed.on_threads({1, 2, 3});
}

const RankCase structures("metrics_structures", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(Numbers(11), {.batch_size = 4, .sharding = Sharding::batches});
  Ints targets;
  std::vector<std::string> texts, expected;
  for (int i = 0; i < 11; ++i) expected.push_back(std::to_string(i));
  for (const auto& batch : loader) {
    const at::Tensor numbers = as_tensor(batch);
    const auto [logits, target] =
        accelerator.gather_for_metrics(std::pair(numbers.unsqueeze(1).expand({-1, 3}), std::vector{numbers}));
    EXPECT_EQ(logits.size(0), target[0].size(0));
    append(targets, as_ints(target[0]));
    std::vector<std::string> mine;
    for (const int number : batch) mine.push_back(std::to_string(number));
    for (const std::string& text : accelerator.gather_for_metrics(mine)) texts.push_back(text);
  }
  EXPECT_EQ(targets, count_to(11));
  EXPECT_EQ(texts, expected);
});
TEST(GatherForMetrics, TakesNestedTensorsAndObjects) {
  structures.on_threads({1, 2, 3});
}

const RankCase refused("metrics_refused", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  EXPECT_THROW((void)accelerator.gather_for_metrics(at::ones({2})), UsageError);  // no loop
  EXPECT_THROW((void)accelerator.gather_for_metrics(std::vector<int>{1}), UsageError);
  auto loader = accelerator.data_loader(Numbers(6 * communicator.size()), {.batch_size = 3});
  for (const auto& batch : loader) {
    // A value without one row per sample is an error in every batch, not only in the last one, which is cut.
    EXPECT_THROW((void)accelerator.gather_for_metrics(at::scalar_tensor(0.5)), UsageError);
    EXPECT_THROW((void)accelerator.gather_for_metrics(at::ones({2})), UsageError);
    EXPECT_THROW((void)accelerator.gather_for_metrics(Ints{1, 2}), UsageError);
    // On one rank only: an error on all ranks.
    const bool last = accelerator.is_last_process();
    EXPECT_THROW((void)accelerator.gather_for_metrics(at::ones({last ? 2 : 3})), UsageError);
    if (communicator.size() > 1) {
      EXPECT_THROW((void)accelerator.gather_for_metrics(at::ones({3, last ? 2 : 3})), MismatchError);
    }
    EXPECT_EQ(accelerator.gather_for_metrics(as_tensor(batch)).size(0), 3 * communicator.size());
  }
});
TEST(GatherForMetrics, RefusesWhatItCannotCount) {
  refused.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::gather_for_metrics_test
