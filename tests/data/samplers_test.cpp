// User-defined samplers, sharded over ranks.
#include "tutti/data/samplers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "data/agreement.h"
#include "data/numbers.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"

namespace tutti::test::samplers_test {
namespace {

using Samples = std::vector<std::int64_t>;

/// The multiples of 3 in a dataset of 30, shifted by the epoch; in epoch 2 only four of them.
Samples thirds(std::int64_t epoch) {
  Samples samples;
  for (std::int64_t i = 0; i < (epoch == 2 ? 4 : 10); ++i) samples.push_back((3 * i + epoch) % 30);
  return samples;
}

TEST(CustomSampler, IsShardedOverRanks) {
  const DataLoaderOptions options{.batch_size = 2, .sampler = thirds};
  DataLoader<Numbers> rank_0(Numbers(30), options, 0, 3);
  DataLoader<Numbers> rank_2(Numbers(30), options, 2, 3);
  EXPECT_EQ(read(rank_0), (Batches{{0, 9}, {18, 27}}));
  EXPECT_EQ(read(rank_2), (Batches{{6, 15}, {24, 3}}));  // 3 is a repeat
  EXPECT_EQ(read(rank_2), (Batches{{7, 16}, {25, 4}}));
  EXPECT_EQ(rank_2.size(), 1);  // epoch 2 is shorter
  EXPECT_EQ(read(rank_2), (Batches{{8, 5}}));
}

TEST(CustomSampler, MayRepeatSamplesAndExceedTheDataset) {
  DataLoader<Numbers> loader(Numbers(2), {.batch_size = 3, .sampler = [](std::int64_t) {
                                            return Samples{1, 1, 0, 1, 1};
                                          }});
  EXPECT_EQ(read(loader), (Batches{{1, 1, 0}, {1, 1}}));
}

/// A callable object.
struct Backwards {
  std::int64_t size;
  Samples operator()(std::int64_t) const {
    Samples samples;
    for (std::int64_t i = size - 1; i >= 0; --i) samples.push_back(i);
    return samples;
  }
};

TEST(CustomSampler, WorksWithEveryOption) {
  const auto rank_1_of_2 = [](DataLoaderOptions options) {
    options.sampler = Backwards{7};
    DataLoader<Numbers> loader(Numbers(7), options, 1, 2, 2);
    return read(loader);
  };
  EXPECT_EQ(rank_1_of_2({.batch_size = 2}), (Batches{{5, 3}, {1, 6}}));
  EXPECT_EQ(rank_1_of_2({.batch_size = 2, .even_batches = false}), (Batches{{5, 3}, {1}}));
  EXPECT_EQ(rank_1_of_2({.batch_size = 2, .drop_last = true}), (Batches{{5, 3}}));
  EXPECT_EQ(rank_1_of_2({.batch_size = 4, .split_batches = true}), (Batches{{5, 3}, {1, 6}}));
  EXPECT_EQ(rank_1_of_2({.batch_size = 2, .sharding = Sharding::batches}), (Batches{{4, 3}, {0, 6}}));
  EXPECT_EQ(rank_1_of_2({.batch_size = 1, .sharding = Sharding::blocks_by_window}), (Batches{{4}, {3}, {0}, {6}}));
  EXPECT_EQ(rank_1_of_2({.batch_size = 2, .num_workers = 2}), (Batches{{5, 3}, {1, 6}}));
}

TEST(BatchSampler, BatchesAreDistributedWhole) {
  const auto by_length = [](std::int64_t epoch) { return std::vector<Samples>{{0, 1, 2, 3}, {4}, {5, 6}, {epoch}}; };
  DataLoader<Numbers> loader(Numbers(9), {.batch_sampler = by_length}, 1, 2);
  EXPECT_EQ(read(loader), (Batches{{4}, {0}}));
  EXPECT_EQ(read(loader), (Batches{{4}, {1}}));
  DataLoader<Numbers> windows(Numbers(9), {.sharding = Sharding::blocks_by_window, .batch_sampler = by_length}, 0, 2,
                              2);
  EXPECT_EQ(read(windows), (Batches{{0, 1, 2, 3}, {4}}));
}

void expect_refused(const DataLoaderOptions& options, const std::string& why) {
  try {
    DataLoader<Numbers> loader(Numbers(5), options, 0, 2);
    FAIL() << "not refused: " << why;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(CustomSampler, InvalidSamplersAreRefused) {
  const auto gives = [](Samples samples) { return [samples](std::int64_t) { return samples; }; };
  const auto in_batches = [](std::vector<Samples> batches) { return [batches](std::int64_t) { return batches; }; };
  expect_refused({.sampler = gives({})}, "no samples for epoch 0");
  expect_refused({.sampler = gives({0, 5})}, "sample 5 in epoch 0, but the dataset has samples 0 .. 4");
  expect_refused({.sampler = gives({-1})}, "sample -1");
  expect_refused({.shuffle = true, .sampler = gives({1})}, "leave shuffle off");
  expect_refused({.batch_size = 2, .drop_last = true, .sampler = gives({1, 2, 3})}, "3 samples on 2 ranks");
  expect_refused({.batch_sampler = in_batches({})}, "no batches");
  expect_refused({.batch_sampler = in_batches({{1}, {}})}, "empty batch");
  expect_refused({.batch_sampler = in_batches({{1}, {7}})}, "sample 7");
  expect_refused({.batch_size = 2, .batch_sampler = in_batches({{1}, {2}})}, "leave batch_size");
  expect_refused({.drop_last = true, .batch_sampler = in_batches({{1}})}, "1 batches on 2 ranks");
  expect_refused({.sampler = gives({1}), .batch_sampler = in_batches({{1}})}, "not both");
}

TEST(CustomSampler, ALaterEpochThatCannotBeReadThrowsBeforeItsLoop) {
  DataLoader<Numbers> loader(Numbers(5), {.sampler = [](std::int64_t epoch) { return Samples{epoch == 0 ? 0 : 9}; }});
  EXPECT_EQ(read(loader), (Batches{{0}}));
  EXPECT_THROW(loader.begin(), UsageError);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_TRUE(loader.stack()->empty());
}

TEST(CustomSampler, ResumesAfterEveryBatch) {
  for (const bool in_batches : {false, true}) {
    DataLoaderOptions options{.batch_size = in_batches ? 1 : 2};
    if (in_batches) {
      options.batch_sampler = [](std::int64_t epoch) {
        std::vector<Samples> batches;
        for (const auto sample : thirds(epoch)) batches.push_back({sample, sample + 1 < 30 ? sample + 1 : 0});
        return batches;
      };
    } else {
      options.sampler = thirds;
    }
    for (int rank = 0; rank < 2; ++rank) {
      DataLoader<Numbers> uninterrupted(Numbers(30), options, rank, 2);
      const Batches first = read(uninterrupted);
      const Batches second = read(uninterrupted);
      DataLoader<Numbers> interrupted(Numbers(30), options, rank, 2);
      std::ptrdiff_t received = 0;
      for ([[maybe_unused]] const auto& batch : interrupted) {
        ++received;
        DataLoader<Numbers> resumed(Numbers(30), options, rank, 2);
        resumed.load_state_dict(interrupted.state_dict());
        EXPECT_EQ(read(resumed), Batches(first.begin() + received, first.end()));
        EXPECT_EQ(read(resumed), second);
      }
    }
  }
}

TEST(CustomSampler, OnOtherNumbersOfRanksEverySampleIsReadOnce) {
  DataLoader<Numbers> interrupted(Numbers(30), {.batch_size = 2, .sampler = thirds}, 0, 2);
  std::vector<int> seen = {0, 3, 6, 9};  // both ranks' first batch
  for ([[maybe_unused]] const auto& batch : interrupted) {
    for (int rank = 0; rank < 3; ++rank) {
      DataLoader<Numbers> resumed(Numbers(30), {.batch_size = 1, .sampler = thirds}, rank, 3);
      resumed.load_state_dict(interrupted.state_dict());
      for (const auto& rest : resumed) seen.push_back(rest[0]);
    }
    break;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<int>{0, 3, 6, 9, 12, 15, 18, 21, 24, 27}));
}

// Importance sampling: what an epoch reads depends on what the program knows when the epoch begins, not on whether it
// has saved a state or asked for the size before.
TEST(CustomSampler, IsAskedWhenItsEpochBegins) {
  const auto learned = std::make_shared<std::int64_t>(0);
  const DataLoaderOptions options{.sampler = [learned](std::int64_t) { return Samples{*learned, *learned + 1}; }};
  DataLoader<Numbers> loader(Numbers(30), options);
  EXPECT_EQ(read(loader), (Batches{{0}, {1}}));
  const StateDict between = loader.state_dict();
  loader.size();
  *learned = 5;
  EXPECT_EQ(read(loader), (Batches{{5}, {6}}));
  loader.load_state_dict(between);
  *learned = 7;
  StateDict within;
  for ([[maybe_unused]] const auto& batch : loader) {
    within = loader.state_dict();
    break;
  }
  DataLoader<Numbers> resumed(Numbers(30), options);
  resumed.load_state_dict(within);
  EXPECT_EQ(read(resumed), (Batches{{8}}));
}

TEST(CustomSampler, TheStateOfAnotherSamplerIsRefused) {
  const auto refusal = [](const DataLoaderOptions& options) -> std::string {
    DataLoader<Numbers> saved(Numbers(7), {.sampler = Backwards{7}});
    saved.skip_first_batches(2);
    DataLoader<Numbers> other(Numbers(7), options);
    try {
      other.load_state_dict(saved.state_dict());
    } catch (const CheckpointError& error) {
      EXPECT_EQ(other.cursor()->batch_index(), 0);
      return error.what();
    }
    return "loaded";
  };
  EXPECT_EQ(refusal({.sampler = Backwards{7}}), "loaded");
  EXPECT_NE(refusal({.sampler = Backwards{6}}).find("other samples for epoch 0"), std::string::npos);
  EXPECT_NE(refusal({}).find("sampler samples, this loader has none"), std::string::npos);
  EXPECT_NE(refusal({.batch_sampler =
                         [](std::int64_t) {
                           return std::vector<Samples>{{1}, {2}, {3}};
                         }})
                .find("sampler samples, this loader has batches"),
            std::string::npos);
}

const RankCase compared("samplers_are_compared", [](const Communicator& communicator) {
  const auto loop = [&](const Sampler& sampler) {
    DataLoader<Numbers> loader(Numbers(9), {.sampler = sampler}, group_of(communicator));
    return read(loader);
  };
  EXPECT_EQ(loop(Backwards{9}).size(), static_cast<std::size_t>((9 + communicator.size() - 1) / communicator.size()));
  const auto last = communicator.size() - 1;
  if (last == 0) return;
  // The same number of samples, in another order.
  const Sampler other_order = [&](std::int64_t) {
    return communicator.rank() == last ? Samples{1, 0, 2} : Samples{0, 1, 2};
  };
  EXPECT_THROW(loop(other_order), MismatchError);
  const Sampler other_number = [&](std::int64_t) { return Samples(communicator.rank() == last ? 3 : 8); };
  EXPECT_THROW(loop(other_number), MismatchError);
  // Epoch 1 fails on one rank, and no rank waits for it.
  const Sampler fails = [&](std::int64_t epoch) {
    if (epoch == 1 && communicator.rank() == last) throw UsageError("no epoch 1");
    return Samples{0, 1, 2};
  };
  DataLoader<Numbers> loader(Numbers(9), {.sampler = fails}, group_of(communicator));
  read(loader);
  if (communicator.rank() == last) {
    EXPECT_THROW(loader.begin(), UsageError);
  } else {
    EXPECT_THROW(loader.begin(), PeerError);
  }
});
TEST(CustomSampler, RanksCompareTheSamplesOfTheirSamplers) {
  compared.everywhere();
}

TEST(WeightedRandomSampler, DrawsByWeight) {
  const WeightedRandomSampler sampler({0, 1, 3, 0}, 8000, {.seed = 5});
  std::map<std::int64_t, int> drawn;
  for (const auto sample : sampler(0)) ++drawn[sample];
  EXPECT_EQ(drawn.size(), 2U);
  EXPECT_NEAR(drawn[1], 2000, 200);
  EXPECT_NEAR(drawn[2], 6000, 200);
}

TEST(WeightedRandomSampler, SeedAndEpochAreAdded) {
  const std::vector<double> weights(50, 0.5);
  const WeightedRandomSampler sampler(weights, 20, {.seed = 5});
  const WeightedRandomSampler next(weights, 20, {.seed = 6});
  EXPECT_EQ(sampler(3), sampler(3));
  EXPECT_NE(sampler(0), sampler(1));
  EXPECT_EQ(sampler(1), next(0));
}

TEST(WeightedRandomSampler, WithoutReplacementDrawsEachOnce) {
  const WeightedRandomSampler sampler({1, 0, 2, 3, 4}, 4, {.replacement = false});
  auto drawn = sampler(7);
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(drawn, (Samples{0, 2, 3, 4}));
}

TEST(WeightedRandomSampler, RefusesInvalidWeights) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(WeightedRandomSampler({}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({0, 0}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, -1}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, infinity}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, std::nan("")}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1}, 0), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, 0, 1}, 3, {.replacement = false}), UsageError);
}

TEST(WeightedRandomSampler, IsShardedOverRanks) {
  const DataLoaderOptions options{.batch_size = 2, .sampler = WeightedRandomSampler({1, 2, 3, 4}, 6, {.seed = 1})};
  const Samples drawn = options.sampler(0);
  Batches expected;
  for (std::size_t i = 0; i < 3; i += 2) {
    expected.push_back({static_cast<int>(drawn[i * 2 + 1])});
    if (i == 0) expected.back().push_back(static_cast<int>(drawn[3]));
  }
  DataLoader<Numbers> loader(Numbers(4), options, 1, 2);
  EXPECT_EQ(read(loader), expected);
}

}  // namespace
}  // namespace tutti::test::samplers_test
