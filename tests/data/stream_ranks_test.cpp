// Loaders over streams whose ranks agree on every batch, as threads and as processes over a Communicator.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/agreement.h"
#include "data/numbers.h"
#include "data/streams.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"

namespace tutti::test::stream_ranks_test {
namespace {

const RankCase agreed("streams_agree", [](const Communicator& communicator) {
  for (const int workers : {0, 1}) {
    StreamLoader<Counting> loader(Counting(31), {.batch_size = 2, .num_workers = workers}, group_of(communicator));
    const auto alone = table(31, {.batch_size = 2}, communicator.size());
    for (int epoch = 0; epoch < 2; ++epoch)
      EXPECT_EQ(read(loader), alone[static_cast<std::size_t>(communicator.rank())]);
    // Leaving loops early, all at the same batch, has no effect on later loops.
    for (int loop = 0; loop < 3; ++loop) {
      for ([[maybe_unused]] const auto& batch : loader) {
        if (loader.cursor()->batch_index() == loop + 1) break;
      }
    }
    EXPECT_EQ(read(loader), alone[static_cast<std::size_t>(communicator.rank())]);
  }
});
TEST(StreamSlices, RanksAgreeOnEveryBatch) {
  agreed.everywhere();
}

const RankCase one_round("stream_of_one_uneven_round", [](const Communicator& communicator) {
  const int last = communicator.size() - 1;
  StreamLoader<Counting> loader(Counting(2 * last), {.batch_size = 2, .even_batches = false}, group_of(communicator));
  int received = 0;
  for ([[maybe_unused]] const auto& batch : loader) {
    ++received;
    EXPECT_TRUE(loader.stack()->innermost().uneven);
  }
  EXPECT_EQ(received, communicator.rank() < last ? 1 : 0);
});
TEST(StreamSlices, ALoopOfOneIncompleteRoundIsUneven) {
  one_round.everywhere();
}

const RankCase differ("streams_differ", [](const Communicator& communicator) {
  if (communicator.size() == 1) return;
  // Rank 1's stream is shorter, although all ranks should read the same stream.
  for (const int shorter : {9, 12, 18, 23}) {
    StreamLoader<Counting> loader(Counting(communicator.rank() == 1 ? shorter : 24), {.batch_size = 2},
                                  group_of(communicator));
    try {
      read(loader);
      FAIL() << "no rank detected " << shorter;
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1's"), std::string::npos) << error.what();
    }
  }
});
TEST(StreamSlices, DifferentStreamsAreAMismatchError) {
  differ.everywhere();
}

/// A stream of 3 + 4 r samples on rank r, starting at 100 r.
Counting own_stream(const Communicator& communicator) {
  return Counting(3 + 4 * communicator.rank(), 100 * communicator.rank());
}

const RankCase shortest("own_streams_stop_together", [](const Communicator& communicator) {
  StreamLoader<Counting> loader(own_stream(communicator), {.batch_size = 2, .sharding = StreamSharding::per_rank},
                                group_of(communicator));
  const int first = 100 * communicator.rank();
  Batches expected{{first, first + 1}, {first + 2}};
  if (communicator.rank() > 0) expected.back().push_back(first + 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    Batches received;
    for (const auto& batch : loader) {
      received.push_back(batch);
      EXPECT_EQ(loader.stack()->at_last_batch(), received.size() == 2);
    }
    EXPECT_EQ(received, expected);
  }
  StreamLoader<Counting> full(own_stream(communicator),
                              {.batch_size = 2, .sharding = StreamSharding::per_rank, .drop_last = true},
                              group_of(communicator));
  EXPECT_EQ(read(full).size(), 1U);
});
TEST(PerRankStreams, AllRanksStopAtTheEndOfTheFirstStream) {
  shortest.everywhere();
}

const RankCase uneven("own_streams_uneven", [](const Communicator& communicator) {
  StreamLoader<Counting> loader(own_stream(communicator),
                                {.batch_size = 2, .sharding = StreamSharding::per_rank, .even_batches = false},
                                group_of(communicator));
  std::size_t received = 0;
  for ([[maybe_unused]] const auto& batch : loader) {
    ++received;
    EXPECT_EQ(loader.stack()->innermost().uneven, communicator.size() > 1);
  }
  EXPECT_EQ(received, static_cast<std::size_t>(2 + 2 * communicator.rank()));
});
TEST(PerRankStreams, UnevenStreamsAreReadToTheirEnds) {
  uneven.everywhere();
}

const RankCase joined("own_streams_joined", [](const Communicator& communicator) {
  for (const int workers : {0, 1}) {
    StreamLoader<Counting> loader(
        own_stream(communicator),
        {.batch_size = 2, .sharding = StreamSharding::per_rank, .even_batches = false, .num_workers = workers},
        group_of(communicator));
    const JoinScope join(loader.stack());
    const auto rounds = static_cast<std::size_t>(2 * communicator.size());
    const int first = 100 * communicator.rank();
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::size_t received = 0;
      std::vector<int> own;
      for (const auto& batch : loader) {
        EXPECT_EQ(loader.stack()->at_last_batch(), ++received == rounds);
        if (loader.stack()->innermost().filler) {
          EXPECT_EQ(batch, (std::vector<int>{first, first + 1}));
        } else {
          own.insert(own.end(), batch.begin(), batch.end());
        }
      }
      EXPECT_EQ(received, rounds);
      EXPECT_EQ(own.size(), static_cast<std::size_t>(3 + 4 * communicator.rank()));
    }
  }
  // The same stream on all ranks: in the last round only one rank has a batch.
  StreamLoader<Counting> slices(Counting(2 * communicator.size() + 1), {.batch_size = 2, .even_batches = false},
                                group_of(communicator));
  const JoinScope join(slices.stack());
  std::vector<bool> fillers;
  for ([[maybe_unused]] const auto& batch : slices) fillers.push_back(slices.stack()->innermost().filler);
  EXPECT_EQ(fillers, (std::vector<bool>{false, communicator.rank() > 0}));
});
TEST(PerRankStreams, JoinedLoopsHaveTheSameLengthOnEveryRank) {
  joined.everywhere();
}

const RankCase nothing("own_stream_with_nothing", [](const Communicator& communicator) {
  if (communicator.size() == 1) {
    StreamLoader<Counting> loader(Counting(0), {.sharding = StreamSharding::per_rank, .even_batches = false},
                                  group_of(communicator));
    const JoinScope join(loader.stack());
    EXPECT_TRUE(read(loader).empty());
    return;
  }
  const bool mine = communicator.rank() == 1;
  const StreamLoaderOptions options{.sharding = StreamSharding::per_rank, .even_batches = false};
  StreamLoader<Counting> loader(Counting(mine ? 0 : 3), options, group_of(communicator));
  {
    const JoinScope join(loader.stack());
    if (mine) {
      EXPECT_THROW(read(loader), UsageError);
    } else {
      EXPECT_THROW(read(loader), PeerError);
    }
  }
  const JoinScope even(loader.stack(), true);
  EXPECT_THROW(read(loader), UsageError);
});
TEST(PerRankStreams, ARankWithAnEmptyStreamIsNamed) {
  nothing.everywhere();
}

/// Runs `loop`, which throws std::runtime_error on the last rank and a PeerError that names it on the others.
void expect_failure_of_last_rank(const Communicator& communicator, const std::function<void()>& loop) {
  const int last = communicator.size() - 1;
  try {
    loop();
    FAIL() << "no rank failed";
  } catch (const PeerError& failure) {
    EXPECT_NE(communicator.rank(), last);
    EXPECT_EQ(failure.ranks(), std::vector<int>{last});
  } catch (const std::runtime_error&) {
    EXPECT_EQ(communicator.rank(), last);
  }
}

const RankCase failing("stream_fails", [](const Communicator& communicator) {
  for (const int workers : {0, 1}) {
    Counting stream(24);
    if (communicator.rank() == communicator.size() - 1) stream.fail_at(4 * communicator.size());
    StreamLoader<Counting> loader(stream, {.batch_size = 2, .num_workers = workers}, group_of(communicator));
    std::int64_t received = 0;
    expect_failure_of_last_rank(communicator, [&] {
      for ([[maybe_unused]] const auto& batch : loader) ++received;
    });
    EXPECT_EQ(received, 2);
    loader.dataset().fail_at(-1);
    EXPECT_FALSE(read(loader).empty());  // the agreement still works
  }
});
TEST(StreamLoader, AFailureOfOneRankReachesAllRanksAtTheSameBatch) {
  failing.everywhere();
}

/// A stream whose reset() can fail.
struct Reopened : Counting {
  using Counting::Counting;
  bool is_missing = false;
  void reset() {
    if (is_missing) throw std::runtime_error("cannot open");
    Counting::reset();
  }
};
const RankCase failing_reset("stream_reset_fails", [](const Communicator& communicator) {
  for (const int workers : {0, 1}) {
    StreamLoader<Reopened> loader(Reopened(24), {.batch_size = 2, .num_workers = workers}, group_of(communicator));
    loader.dataset().is_missing = communicator.rank() == communicator.size() - 1;
    expect_failure_of_last_rank(communicator, [&] { read(loader); });
    loader.dataset().is_missing = false;
    EXPECT_FALSE(read(loader).empty());  // the agreement still works
  }
});
TEST(StreamLoader, AFailedResetOfOneRankReachesAllRanks) {
  failing_reset.everywhere();
}

const RankCase left_apart("streams_left_apart", [](const Communicator& communicator) {
  if (communicator.size() == 1) return;
  StreamLoader<Counting> loader(Counting(60), {.batch_size = 1}, group_of(communicator));
  const auto two_loops = [&] {
    for ([[maybe_unused]] const auto& batch : loader) {
      if (loader.cursor()->batch_index() == (communicator.rank() == 0 ? 2 : 5)) break;
    }
    read(loader);
  };
  EXPECT_THROW(two_loops(), MismatchError);
});
TEST(StreamLoader, LeavingLoopsAtDifferentBatchesIsAMismatchError) {
  left_apart.everywhere();
}

const RankCase nested("streams_nested", [](const Communicator& communicator) {
  StreamLoader<Counting> outer(Counting(5 * communicator.size()), {}, group_of(communicator));
  StreamLoader<Counting> inner(Counting(4 * communicator.size()), {.num_workers = 1}, group_of(communicator));
  int outer_batches = 0;
  int inner_batches = 0;
  for ([[maybe_unused]] const auto& batch : outer) {
    ++outer_batches;
    for ([[maybe_unused]] const auto& nested_batch : inner) {
      ++inner_batches;
      if (outer_batches % 2 == 0 && inner.cursor()->batch_index() == 2) break;
    }
  }
  EXPECT_EQ(outer_batches, 5);
  EXPECT_EQ(inner_batches, 3 * 4 + 2 * 2);
});
TEST(StreamLoader, NestedLoopsAgreeInTheirOrder) {
  nested.everywhere();
}

TEST(StreamDecisions, FollowFromTheStatesOfAllRanks) {
  using Ranks = std::vector<std::vector<std::int64_t>>;
  const auto verdict = [](StreamSharding sharding, EpochTail tail, const Ranks& ranks) {
    return decide_stream_batch({.sharding = sharding, .tail = tail, .world_size = 2, .is_resumed = true}, ranks);
  };
  const auto own = StreamSharding::per_rank;
  const auto slices = StreamSharding::slices;
  EXPECT_EQ(verdict(slices, EpochTail::repeat, {{1, 0, 1}, {1, 0, 1}}), StreamDecision::more);
  EXPECT_EQ(verdict(slices, EpochTail::repeat, {{1, 0, 0}, {1, 0, 0}}), StreamDecision::end);
  EXPECT_THROW(verdict(slices, EpochTail::repeat, {{1, 0, 1}, {1, 0, 0}}), MismatchError);
  EXPECT_THROW(verdict(slices, EpochTail::repeat, {{1, 0, 1}, {1, 0, 2}}), MismatchError);
  EXPECT_EQ(verdict(own, EpochTail::repeat, {{1, 0, 1}, {1, 0, 0}}), StreamDecision::end);
  EXPECT_THROW(decide_stream_batch({.sharding = own, .world_size = 2}, {{1, 0, 1}, {1, 0, 0}}), UsageError);
  EXPECT_EQ(decide_stream_batch({.sharding = own, .world_size = 2}, {{1, 0, 0}, {1, 0, 0}}), StreamDecision::end);
  EXPECT_EQ(decide_stream_batch({.sharding = own, .world_size = 2}, {{1, 1, 1}, {1, 1, 0}}), StreamDecision::end);
  EXPECT_EQ(verdict(own, EpochTail::join, {{1, 0, 2}, {1, 0, 0}}), StreamDecision::more);
  EXPECT_EQ(verdict(own, EpochTail::join, {{1, 0, 0}, {1, 0, 0}}), StreamDecision::end);
  EXPECT_THROW(verdict(own, EpochTail::join, {{1, 0, 1}, {1, 0, -1}}), PeerError);
  EXPECT_THROW(verdict(own, EpochTail::join, {{1, 0, 1}, {1, 1, 1}}), MismatchError);
  EXPECT_THROW(verdict(own, EpochTail::join, {{1, 0, 1}, {2, 0, 1}}), MismatchError);
}

}  // namespace
}  // namespace tutti::test::stream_ranks_test
