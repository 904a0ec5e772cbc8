#include "tutti/data/data_loader.h"

#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/shared.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/data/transforms/tensor.h>

#include <ATen/ops/arange.h>

#include <iterator>
#include <stdexcept>
#include <vector>

#include "data/numbers.h"

namespace tutti::data_loader_test {
namespace {

using test::Batches;
using test::Numbers;
using test::read;

static_assert(std::input_iterator<DataLoader<Numbers>::Iterator>);
static_assert(std::sentinel_for<std::default_sentinel_t, DataLoader<Numbers>::Iterator>);
static_assert(IndexedDataset<torch::data::datasets::TensorDataset>);
static_assert(!IndexedDataset<std::vector<int>>);

TEST(DataLoader, ReadsItsRanksShardInBatches) {
  DataLoader<Numbers> loader(Numbers(10), {.batch_size = 3}, 1, 2);
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(read(loader), (Batches{{1, 3, 5}, {7, 9}}));
}

TEST(DataLoader, DropLastDropsTheBatchThatIsNotFull) {
  DataLoader<Numbers> loader(Numbers(11), {.batch_size = 3, .drop_last = true}, 1, 2);
  EXPECT_EQ(loader.size(), 1);
  EXPECT_EQ(read(loader), (Batches{{1, 3, 5}}));
}

TEST(DataLoader, ShardsBlocksByWindow) {
  DataLoader<Numbers> loader(Numbers(16), {.batch_size = 2, .sharding = Sharding::blocks_by_window}, 1, 2, 2);
  EXPECT_EQ(read(loader), (Batches{{4, 5}, {6, 7}, {12, 13}, {14, 15}}));
}

TEST(DataLoader, EachLoopReadsTheNextEpoch) {
  DataLoader<Numbers> loader(Numbers(50), {.batch_size = 50, .shuffle = true});
  EXPECT_EQ(loader.epoch(), 0);
  const auto first = read(loader);
  EXPECT_EQ(loader.epoch(), 1);
  const auto second = read(loader);
  EXPECT_NE(first, second);
  loader.set_epoch(0);
  EXPECT_EQ(read(loader), first);
  EXPECT_EQ(read(loader), second);
}

TEST(DataLoader, LeavingALoopEarlyEndsItsEpoch) {
  DataLoader<Numbers> loader(Numbers(50), {.batch_size = 1, .shuffle = true});
  DataLoader<Numbers> other(Numbers(50), {.batch_size = 1, .shuffle = true});
  for ([[maybe_unused]] const auto& batch : loader) break;
  other.set_epoch(1);
  EXPECT_EQ(read(loader), read(other));
}

TEST(DataLoader, KnowsItsLastBatchWhileItIsUsed) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Numbers> loader(Numbers(5), {.batch_size = 2}, 0, 1, 1, stack);
  std::vector<bool> last;
  EXPECT_TRUE(stack->empty());
  for ([[maybe_unused]] const auto& batch : loader) last.push_back(stack->at_last_batch());
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
  EXPECT_TRUE(stack->empty());
  EXPECT_FALSE(stack->at_last_batch());
}

TEST(DataLoader, ASingleBatchIsTheLast) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Numbers> loader(Numbers(2), {.batch_size = 4}, 0, 1, 1, stack);
  for ([[maybe_unused]] const auto& batch : loader) EXPECT_TRUE(stack->at_last_batch());
}

TEST(DataLoader, TheInnermostOfNestedLoopsIsShown) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Numbers> outer(Numbers(2), {}, 0, 1, 1, stack);
  DataLoader<Numbers> inner(Numbers(2), {}, 0, 1, 1, stack);
  std::vector<bool> during;
  std::vector<bool> after;
  for ([[maybe_unused]] const auto& batch : outer) {
    for ([[maybe_unused]] const auto& nested : inner) during.push_back(stack->at_last_batch());
    after.push_back(stack->at_last_batch());
  }
  EXPECT_EQ(during, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(after, (std::vector<bool>{false, true}));
}

TEST(DataLoader, BreakAndExceptionEndTheLoop) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Numbers> outer(Numbers(3), {}, 0, 1, 1, stack);
  DataLoader<Numbers> inner(Numbers(3), {}, 0, 1, 1, stack);
  std::vector<bool> last;
  for ([[maybe_unused]] const auto& batch : outer) {
    for ([[maybe_unused]] const auto& nested : inner) break;
    try {
      for ([[maybe_unused]] const auto& nested : inner) throw std::runtime_error("stop");
    } catch (const std::runtime_error&) {
    }
    last.push_back(stack->at_last_batch());
  }
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
  EXPECT_TRUE(stack->empty());
}

TEST(DataLoader, TheEndLeavesTheStackBeforeTheIteratorIsDestroyed) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Numbers> loader(Numbers(1), {}, 0, 1, 1, stack);
  auto iterator = loader.begin();
  EXPECT_FALSE(stack->empty());
  ++iterator;
  EXPECT_TRUE(iterator == loader.end());
  EXPECT_TRUE(stack->empty());
}

/// A dataset that cannot read sample 2.
class Broken : public Numbers {
 public:
  Broken() : Numbers(4) {}
  std::vector<int> get_batch(std::vector<std::size_t> indices) const {
    if (indices[0] == 2) throw std::runtime_error("cannot read");
    return Numbers::get_batch(indices);
  }
};

TEST(DataLoader, AFailingDatasetEndsTheLoop) {
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Broken> loader(Broken(), {}, 0, 1, 1, stack);
  EXPECT_THROW(for ([[maybe_unused]] const auto& batch : loader) continue, std::runtime_error);
  EXPECT_TRUE(stack->empty());
  DataLoader<Broken> rank_two(Broken(), {}, 2, 4, 1, stack);
  EXPECT_THROW(rank_two.begin(), std::runtime_error);
  EXPECT_TRUE(stack->empty());
}

TEST(DataLoader, ReadsLibTorchDatasets) {
  const auto samples = at::arange(8, at::kFloat).view({4, 2});
  DataLoader plain(torch::data::datasets::TensorDataset(samples), {.batch_size = 2}, 1, 2);
  for (const auto& batch : plain) {
    ASSERT_EQ(batch.size(), 2u);
    EXPECT_TRUE(batch[0].data.equal(samples[1]));
    EXPECT_TRUE(batch[1].data.equal(samples[3]));
  }
  using Stack = torch::data::transforms::Stack<torch::data::TensorExample>;
  DataLoader loader(torch::data::datasets::TensorDataset(samples).map(Stack()), {.batch_size = 4});
  for (auto& batch : loader) EXPECT_TRUE(batch.data.equal(samples));
}

/// A dataset of LibTorch whose samples are the epoch's number.
struct OfEpoch : torch::data::datasets::Dataset<OfEpoch> {
  void set_epoch(std::int64_t number) { epoch = number; }
  torch::data::Example<> get(std::size_t) override { return {at::full({1}, epoch, at::kLong), at::zeros({1})}; }
  std::optional<std::size_t> size() const override { return 2; }
  std::int64_t epoch = -1;
};

/// Adds ten times the epoch's number.
struct AddEpoch : torch::data::transforms::TensorTransform<> {
  void set_epoch(std::int64_t number) { epoch = number; }
  at::Tensor operator()(at::Tensor input) override { return input + 10 * epoch; }
  std::int64_t epoch = -1;
};

// LibTorch's wrappers forward reset() only.
TEST(DataLoader, TellsTheEpochToWhatAMapContains) {
  const auto expect_epochs = [](auto& loader, std::int64_t factor) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      for (const auto& batch : loader) EXPECT_EQ(batch.data[0].template item<std::int64_t>(), factor * epoch);
    }
  };
  for (const int workers : {0, 1}) {
    const DataLoaderOptions options{.batch_size = 2, .num_workers = workers};
    DataLoader mapped(OfEpoch().map(AddEpoch()).map(torch::data::transforms::Stack<>()), options);
    expect_epochs(mapped, 11);
    DataLoader shared(torch::data::datasets::make_shared_dataset<OfEpoch>().map(torch::data::transforms::Stack<>()),
                      options);
    expect_epochs(shared, 1);
  }
}

TEST(DataLoader, RefusesInvalidOptions) {
  EXPECT_THROW(DataLoader(Numbers(0), {}), UsageError);
  EXPECT_THROW(DataLoader(Numbers(4), {.batch_size = 0}), UsageError);
  EXPECT_THROW(DataLoader(Numbers(4), {}, 4, 4), UsageError);
  EXPECT_THROW(DataLoader(Numbers(4), {.batch_size = 3, .drop_last = true}, 0, 2), UsageError);
}

}  // namespace
}  // namespace tutti::data_loader_test
