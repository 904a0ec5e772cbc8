// A loader continues at the saved position of another loader. Ranks are loaders in one process that do not communicate.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/numbers.h"

namespace tutti::resume_test {
namespace {

using test::Batches;
using test::Numbers;
using test::read;

struct ShardingCase {
  int world_size = 1;
  std::int64_t batch_size = 1;
  std::int64_t accumulation_steps = 1;
};

class Resume : public testing::TestWithParam<std::tuple<Sharding, bool>> {
 protected:
  static DataLoader<Numbers> loader(int samples, const ShardingCase& layout, int rank,
                                    std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>()) {
    const auto [sharding, drop_last] = GetParam();
    return {Numbers(samples),
            {.batch_size = layout.batch_size, .shuffle = true, .seed = 5, .sharding = sharding, .drop_last = drop_last},
            rank,
            layout.world_size,
            layout.accumulation_steps,
            std::move(stack)};
  }

  /// Reads `batches` batches on each rank after `state` (empty: from the start) and records the samples. Returns the
  /// state in the body of the last batch.
  static StateDict read_some(int samples, const ShardingCase& layout, std::int64_t batches, const StateDict& state,
                             std::multiset<int>& samples_read) {
    StateDict after;
    for (int rank = 0; rank < layout.world_size; ++rank) {
      auto reading = loader(samples, layout, rank);
      if (!state.empty()) reading.load_state_dict(state);
      std::int64_t received = 0;
      for (const auto& batch : reading) {
        samples_read.insert(batch.begin(), batch.end());
        after = reading.state_dict();
        if (++received == batches) break;
      }
    }
    return after;
  }

  static std::multiset<int> read_rest(int samples, const ShardingCase& layout, const StateDict& state) {
    std::multiset<int> rest;
    for (int rank = 0; rank < layout.world_size; ++rank) {
      auto reading = loader(samples, layout, rank);
      reading.load_state_dict(state);
      for (const auto& batch : read(reading)) rest.insert(batch.begin(), batch.end());
    }
    return rest;
  }
};

TEST_P(Resume, ContinuesAfterEveryBatchAsAnUninterruptedLoop) {
  for (const int samples : {12, 37, 41}) {
    for (const int world_size : {1, 2, 3}) {
      for (int rank = 0; rank < world_size; ++rank) {
        const ShardingCase layout{.world_size = world_size, .batch_size = 2, .accumulation_steps = 3};
        auto uninterrupted = loader(samples, layout, rank);
        const Batches first = read(uninterrupted);
        const Batches second = read(uninterrupted);
        auto interrupted = loader(samples, layout, rank);
        std::ptrdiff_t received = 0;
        for ([[maybe_unused]] const auto& batch : interrupted) {
          ++received;
          auto resumed = loader(samples, layout, rank);
          resumed.load_state_dict(interrupted.state_dict());
          SCOPED_TRACE(std::to_string(samples) + " samples, rank " + std::to_string(rank) + " of " +
                       std::to_string(world_size) + ", after " + std::to_string(received));
          EXPECT_EQ(resumed.cursor()->batch_index(), received);
          EXPECT_EQ(resumed.epoch(), 0);
          EXPECT_EQ(read(resumed), Batches(first.begin() + received, first.end()));
          EXPECT_EQ(resumed.epoch(), 1);
          EXPECT_EQ(read(resumed), second);
        }
        EXPECT_EQ(received, static_cast<std::ptrdiff_t>(first.size()));
      }
    }
  }
}

TEST_P(Resume, AResumedLoopCanBeSavedAndResumedAgain) {
  const ShardingCase layout{.world_size = 2, .batch_size = 2, .accumulation_steps = 2};
  auto uninterrupted = loader(40, layout, 1);
  const Batches whole = read(uninterrupted);
  Batches pieces;
  StateDict state = loader(40, layout, 1).state_dict();
  while (pieces.size() < whole.size()) {
    auto resumed = loader(40, layout, 1);
    resumed.load_state_dict(state);
    std::size_t received = 0;
    for (const auto& batch : resumed) {
      pieces.push_back(batch);
      state = resumed.state_dict();
      if (++received == 3) break;
    }
  }
  EXPECT_EQ(pieces, whole);
}

TEST_P(Resume, OnOtherNumbersOfRanksEverySampleIsReadOnce) {
  const int samples = 144;
  for (std::int64_t before = 1; before <= 12; ++before) {
    for (std::int64_t between = 1; between <= 3; ++between) {
      SCOPED_TRACE(std::to_string(before) + " batches on 2 ranks, " + std::to_string(between) + " on 3");
      std::multiset<int> all;
      const auto on_two =
          read_some(samples, {.world_size = 2, .batch_size = 3, .accumulation_steps = 4}, before, {}, all);
      const auto on_three =
          read_some(samples, {.world_size = 3, .batch_size = 2, .accumulation_steps = 2}, between, on_two, all);
      all.merge(read_rest(samples, {.world_size = 1, .batch_size = 1, .accumulation_steps = 4}, on_three));
      EXPECT_EQ(all.size(), static_cast<std::size_t>(samples));
      EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), static_cast<std::size_t>(samples));
    }
  }
}

// Sizes that fill neither ranks nor batches: only the samples that pad the last round are repeated or dropped.
TEST_P(Resume, OnOtherNumbersOfRanksNoSampleOfUnevenDataIsMissed) {
  const auto [sharding, drop_last] = GetParam();
  const int samples = 59;
  for (std::int64_t before = 1; before <= 4; ++before) {
    SCOPED_TRACE(std::to_string(before) + " batches on 2 ranks");
    std::multiset<int> all;
    const auto on_two =
        read_some(samples, {.world_size = 2, .batch_size = 4, .accumulation_steps = 3}, before, {}, all);
    const ShardingCase last{.world_size = 3, .batch_size = 2, .accumulation_steps = 2};
    all.merge(read_rest(samples, last, on_two));
    const auto distinct = static_cast<int>(std::set<int>(all.begin(), all.end()).size());
    if (drop_last) {
      EXPECT_EQ(static_cast<int>(all.size()), distinct);
      EXPECT_GT(distinct, samples - 6);
    } else {
      EXPECT_EQ(distinct, samples);
      EXPECT_LT(static_cast<int>(all.size()), samples + 6);
    }
  }
}

TEST_P(Resume, ChangingTheShardingBackAndForthReadsEverySampleOnce) {
  std::multiset<int> all;
  const ShardingCase two{.world_size = 2, .batch_size = 1, .accumulation_steps = 4};
  const ShardingCase three{.world_size = 3, .batch_size = 2, .accumulation_steps = 2};
  StateDict state = read_some(120, two, 3, {}, all);
  state = read_some(120, three, 1, state, all);
  state = read_some(120, two, 6, state, all);
  state = read_some(120, two, 1, state, all);
  all.merge(read_rest(120, {.world_size = 1}, state));
  EXPECT_EQ(all.size(), 120U);
  EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), 120U);
}

TEST_P(Resume, KnowsItsLastBatch) {
  const ShardingCase layout{.world_size = 2, .batch_size = 2, .accumulation_steps = 2};
  auto interrupted = loader(24, layout, 0);
  for ([[maybe_unused]] const auto& batch : interrupted) {
    const auto stack = std::make_shared<LoaderStack>();
    auto resumed = loader(24, layout, 0, stack);
    resumed.load_state_dict(interrupted.state_dict());
    const std::int64_t left = 6 - interrupted.cursor()->batch_index();
    std::int64_t received = 0;
    for ([[maybe_unused]] const auto& rest : resumed) EXPECT_EQ(stack->at_last_batch(), ++received == left);
    EXPECT_EQ(received, left);
    EXPECT_TRUE(stack->empty());
  }
}

TEST_P(Resume, AfterACompleteEpochTheLoopIsEmptyAndTheNextOneReadsTheNextEpoch) {
  const ShardingCase layout{.world_size = 2, .batch_size = 2};
  auto interrupted = loader(8, layout, 0);
  StateDict in_last_body;
  for ([[maybe_unused]] const auto& batch : interrupted) in_last_body = interrupted.state_dict();
  const Batches second = read(interrupted);

  const auto stack = std::make_shared<LoaderStack>();
  auto resumed = loader(8, layout, 0, stack);
  resumed.load_state_dict(in_last_body);
  EXPECT_EQ(resumed.epoch(), 0);
  EXPECT_TRUE(resumed.begin() == resumed.end());
  EXPECT_TRUE(stack->empty());
  EXPECT_EQ(resumed.epoch(), 1);
  EXPECT_EQ(read(resumed), second);
}

INSTANTIATE_TEST_SUITE_P(EitherSharding, Resume,
                         testing::Combine(testing::Values(Sharding::interleaved, Sharding::blocks_by_window),
                                          testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == Sharding::interleaved ? "Interleaved"
                                                                                               : "BlocksByWindow") +
                                  (std::get<1>(test.param) ? "DropLast" : "");
                         });

// A step reads the same micro-batches if accumulation x ranks stays the same, so a run may change the number of ranks
// between two steps.
TEST(ResumeByWindow, StepsStayTheSameOnOtherNumbersOfRanks) {
  const auto windows = [](int world_size, const StateDict& state) {
    std::map<std::size_t, std::vector<int>> result;  // by window, in rank order
    const auto steps = 12 / world_size;
    for (int rank = 0; rank < world_size; ++rank) {
      DataLoader<Numbers> loader(Numbers(96),
                                 {.batch_size = 2, .shuffle = true, .sharding = Sharding::blocks_by_window}, rank,
                                 world_size, steps);
      if (!state.empty()) loader.load_state_dict(state);
      const auto batches = read(loader);
      for (std::size_t i = 0; i < batches.size(); ++i) {
        auto& window = result[i / static_cast<std::size_t>(steps)];
        window.insert(window.end(), batches[i].begin(), batches[i].end());
      }
    }
    return result;
  };
  DataLoader<Numbers> interrupted(Numbers(96),
                                  {.batch_size = 2, .shuffle = true, .sharding = Sharding::blocks_by_window}, 0, 4, 3);
  interrupted.skip_first_batches(3);  // one window
  auto uninterrupted = windows(4, {});
  uninterrupted.erase(0);
  for (const int world_size : {1, 2, 3, 6}) {
    const auto resumed = windows(world_size, interrupted.state_dict());
    ASSERT_EQ(resumed.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed.at(i), uninterrupted.at(i + 1)) << world_size << " ranks";
  }
}

}  // namespace
}  // namespace tutti::resume_test
