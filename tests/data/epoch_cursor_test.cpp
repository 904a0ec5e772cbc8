#include "tutti/detail/data/epoch_cursor.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "data/numbers.h"

namespace tutti::epoch_cursor_test {
namespace {

using test::Batches;
using test::Numbers;
using test::read;

const DataLoaderOptions shuffled{.batch_size = 2, .shuffle = true, .seed = 3};

TEST(EpochCursor, CountsTheBatchesThatTheLoopHasReceived) {
  DataLoader<Numbers> loader(Numbers(6), shuffled);
  const auto cursor = loader.cursor();
  EXPECT_EQ(cursor->batch_index(), 0);
  EXPECT_FALSE(cursor->reading());
  std::int64_t received = 0;
  for ([[maybe_unused]] const auto& batch : loader) {
    EXPECT_EQ(cursor->batch_index(), ++received);
    EXPECT_EQ(cursor->epoch(), 0);
    EXPECT_EQ(loader.epoch(), 1);
    EXPECT_TRUE(cursor->reading());
  }
  EXPECT_EQ(cursor->epoch(), 1);
  EXPECT_EQ(cursor->batch_index(), 0);
  EXPECT_EQ(cursor->batches_per_epoch(), 3);
}

TEST(EpochCursor, LeavingALoopEarlyMovesOnToTheNextEpoch) {
  DataLoader<Numbers> loader(Numbers(6), shuffled);
  for ([[maybe_unused]] const auto& batch : loader) break;
  EXPECT_EQ(loader.cursor()->epoch(), 1);
  EXPECT_EQ(loader.cursor()->batch_index(), 0);
}

TEST(EpochCursor, ALoopThatCannotBeginDoesNotMoveTheCursor) {
  struct Broken : Numbers {
    Broken() : Numbers(4) {}
    std::vector<int> get_batch(const std::vector<std::size_t>&) const { throw std::runtime_error("cannot read"); }
  };
  DataLoader<Broken> loader(Broken(), {});
  EXPECT_THROW(loader.begin(), std::runtime_error);
  EXPECT_EQ(loader.cursor()->epoch(), 0);
  EXPECT_FALSE(loader.cursor()->reading());
}

TEST(EpochCursor, FollowsTheLoopThatReceivedABatchLast) {
  DataLoader<Numbers> loader(Numbers(6), shuffled);
  auto outer = loader.begin();
  ++outer;
  auto inner = loader.begin();
  EXPECT_EQ(loader.cursor()->epoch(), 1);
  EXPECT_EQ(loader.cursor()->batch_index(), 1);
  EXPECT_EQ(loader.epoch(), 2);
  ++outer;
  EXPECT_EQ(loader.cursor()->epoch(), 0);
  EXPECT_EQ(loader.cursor()->batch_index(), 3);
  ++inner;
  ++outer;  // has ended
  EXPECT_EQ(loader.cursor()->epoch(), 1);
  EXPECT_EQ(loader.cursor()->batch_index(), 2);
}

// For example to read the number of features.
TEST(EpochCursor, AnIteratorThatStaysAtItsFirstBatchIsNotThePosition) {
  DataLoader<Numbers> loader(Numbers(6), shuffled);
  const auto first_look = loader.begin();
  read(loader);
  for ([[maybe_unused]] const auto& batch : loader) {
    EXPECT_EQ(loader.cursor()->epoch(), 2);
    EXPECT_EQ(loader.cursor()->batch_index(), 1);
    break;
  }
}

TEST(EpochCursor, ALoopInsideALoopMovesNoPosition) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  std::vector<StateDict> states;
  std::vector<std::vector<int>> batches;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : loader) {
      batches.push_back(batch);
      if (batches.size() == 2) read(loader);
      states.push_back(loader.state_dict());
    }
  }
  ASSERT_EQ(batches.size(), 8U);
  DataLoader<Numbers> resumed(Numbers(8), shuffled);
  resumed.load_state_dict(states[1]);
  EXPECT_EQ(read(resumed), Batches(batches.begin() + 2, batches.begin() + 4));
  EXPECT_EQ(read(resumed), Batches(batches.begin() + 4, batches.end()));
}

TEST(EpochCursor, LoadingInsideALoopAppliesToTheNextLoop) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  const Batches whole = read(loader);
  loader.set_epoch(0);
  StateDict after_one;
  for ([[maybe_unused]] const auto& batch : loader) {
    if (after_one.empty()) after_one = loader.state_dict();
    if (loader.cursor()->batch_index() == 3) {
      loader.load_state_dict(after_one);
      break;
    }
  }
  EXPECT_EQ(read(loader), Batches(whole.begin() + 1, whole.end()));
}

// The loop would read on behind the rolled-back position, and the next one would read the same samples again.
TEST(EpochCursor, ALoopThatGoesOnAfterLoadingIsRefused) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  const Batches whole = read(loader);
  loader.set_epoch(0);
  StateDict after_one;
  const auto roll_back_and_go_on = [&] {
    for ([[maybe_unused]] const auto& batch : loader) {
      if (after_one.empty()) after_one = loader.state_dict();
      if (loader.cursor()->batch_index() == 3) loader.load_state_dict(after_one);
    }
  };
  EXPECT_THROW(roll_back_and_go_on(), UsageError);
  EXPECT_EQ(read(loader), Batches(whole.begin() + 1, whole.end()));
}

TEST(EpochCursor, SetEpochKeepsThePositionInThatEpochOnly) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  StateDict state;
  for ([[maybe_unused]] const auto& batch : loader) {
    state = loader.state_dict();
    break;
  }
  loader.load_state_dict(state);
  loader.set_epoch(0);
  EXPECT_EQ(read(loader).size(), 3U);
  loader.load_state_dict(state);
  loader.set_epoch(2);
  EXPECT_EQ(read(loader).size(), 4U);
}

TEST(EpochCursor, SetEpochInsideALoopSurvivesSaving) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  StateDict state;
  for ([[maybe_unused]] const auto& batch : loader) {
    loader.set_epoch(7);
    state = loader.state_dict();
  }
  EXPECT_EQ(loader.epoch(), 7);
  DataLoader<Numbers> resumed(Numbers(8), shuffled);
  resumed.load_state_dict(state);
  EXPECT_TRUE(read(resumed).empty());
  EXPECT_EQ(resumed.epoch(), 7);
}

TEST(SkipFirstBatches, AppliesToTheNextLoopOnly) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  DataLoader<Numbers> whole(Numbers(8), shuffled);
  loader.skip_first_batches(1);
  loader.skip_first_batches(2);
  const Batches first = read(whole);
  EXPECT_EQ(read(loader), Batches(first.begin() + 3, first.end()));
  EXPECT_EQ(read(loader), read(whole));
  loader.skip_first_batches(4);
  EXPECT_TRUE(read(loader).empty());
  EXPECT_EQ(loader.epoch(), 3);
}

TEST(SkipFirstBatches, CountsAsRead) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  loader.skip_first_batches(2);
  for ([[maybe_unused]] const auto& batch : loader) {
    EXPECT_EQ(loader.cursor()->batch_index(), 3);
    break;
  }
}

TEST(SkipFirstBatches, RefusesMoreBatchesThanAreLeft) {
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  EXPECT_THROW(loader.skip_first_batches(5), UsageError);
  EXPECT_THROW(loader.skip_first_batches(-1), UsageError);
  loader.skip_first_batches(3);
  EXPECT_THROW(loader.skip_first_batches(2), UsageError);
  for ([[maybe_unused]] const auto& batch : loader) EXPECT_THROW(loader.skip_first_batches(1), UsageError);
}

TEST(SkipFirstBatches, RefusesToSkipAPositionThatWasRestoredTwice) {
  DataLoader<Numbers> saved(Numbers(8), shuffled);
  const StateDict at_start = saved.state_dict();
  StateDict inside;
  for ([[maybe_unused]] const auto& batch : saved) {
    inside = saved.state_dict();
    break;
  }
  DataLoader<Numbers> loader(Numbers(8), shuffled);
  loader.load_state_dict(inside);
  try {
    loader.skip_first_batches(1);
    ADD_FAILURE() << "the loader skips twice";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("to batch 1 of its epoch already"), std::string::npos) << error.what();
  }
  EXPECT_EQ(read(loader).size(), 3U);
  loader.skip_first_batches(1);  // of the next epoch
  EXPECT_EQ(read(loader).size(), 3U);
  loader.load_state_dict(inside);
  loader.set_epoch(5);
  EXPECT_NO_THROW(loader.skip_first_batches(1));
  loader.load_state_dict(at_start);
  loader.skip_first_batches(1);
  EXPECT_EQ(read(loader).size(), 3U);
}

/// Loads `state` into a loader that has read one batch. Returns the error, and checks that the position did not change.
std::string refusal(DataLoader<Numbers> loader, const StateDict& state) {
  loader.skip_first_batches(1);
  try {
    loader.load_state_dict(state);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(loader.cursor()->batch_index(), 1);
    EXPECT_EQ(loader.epoch(), 0);
    return error.what();
  }
  return "loaded";
}

StateDict with(StateDict state, const std::string& name, StateValue value) {
  state.set(name, std::move(value));
  return state;
}

TEST(EpochCursorState, TheStateOfAnotherLoaderIsRefusedByName) {
  DataLoader<Numbers> saved(Numbers(8), shuffled);
  saved.skip_first_batches(1);
  const StateDict state = saved.state_dict();
  const auto expect_refused = [&](DataLoader<Numbers> loader, const std::string& difference) {
    EXPECT_NE(refusal(std::move(loader), state).find(difference), std::string::npos) << difference;
  };
  expect_refused({Numbers(9), shuffled}, "dataset_size 8, this loader has 9");
  expect_refused({Numbers(8), {.shuffle = true, .seed = 4}}, "seed 3, this loader has 4");
  expect_refused({Numbers(8), {.seed = 3}}, "shuffle true, this loader has false");
  expect_refused({Numbers(8), {.shuffle = true, .seed = 3, .sharding = Sharding::blocks_by_window}},
                 "sharding interleaved, this loader has blocks_by_window");
  expect_refused({Numbers(8), {.shuffle = true, .seed = 3, .drop_last = true}}, "drop_last false");
  EXPECT_EQ(refusal({Numbers(8), {.batch_size = 1, .shuffle = true, .seed = 3}}, state), "loaded");
}

TEST(EpochCursorState, BetweenTwoEpochsTheOptionsAreFree) {
  DataLoader<Numbers> saved(Numbers(8), shuffled);
  read(saved);
  for (DataLoader<Numbers> other :
       {DataLoader<Numbers>(Numbers(9), shuffled), DataLoader<Numbers>(Numbers(8), {.seed = 4}),
        DataLoader<Numbers>(Numbers(8), {.drop_last = true})}) {
    other.load_state_dict(saved.state_dict());
    EXPECT_EQ(other.epoch(), 1);
    EXPECT_EQ(other.cursor()->batch_index(), 0);
  }
}

TEST(EpochCursorState, ADamagedStateIsRefused) {
  using Numbers64 = std::vector<std::int64_t>;
  DataLoader<Numbers> saved(Numbers(8), shuffled);
  saved.skip_first_batches(2);
  const StateDict state = saved.state_dict();
  const auto expect_refused = [&](const StateDict& damaged, const std::string& what) {
    EXPECT_NE(refusal({Numbers(8), shuffled}, damaged).find(what), std::string::npos) << what;
  };
  expect_refused(with(state, "epoch", std::int64_t{-1}), "negative epoch");
  expect_refused(with(state, "segments.batches", Numbers64{5}), "5 micro-batches");
  expect_refused(with(state, "segments.batches", Numbers64{-1}), "-1 micro-batches");
  expect_refused(with(state, "segments.batches", Numbers64{1, 1}), "differ in number");
  expect_refused(with(state, "segments.world_size", Numbers64{0}), "world_size is 0");
  expect_refused(with(state, "epoch", 1.5), "another type");
  expect_refused({}, "has no 'dataset_size'");
}

}  // namespace
}  // namespace tutti::epoch_cursor_test
