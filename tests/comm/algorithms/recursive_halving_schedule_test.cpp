// Ranks: none. Simulates the schedules of 2 to 65536 ranks.
#include "comm/algorithms/recursive_halving_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms/small_all_gather.h"
#include "comm/reduction/reduce_tree.h"
#include "plan/traffic.h"

namespace tutti::test::recursive_halving_schedule_test {
namespace {

using namespace tutti::comm;
using Kind = RecursiveHalvingStep::Kind;

/// The expected additions as text: "((0+1)+2)".
std::string tree(int begin, int size) {
  if (size == 1) return std::to_string(begin);
  const int left = static_cast<int>(split_point(static_cast<std::size_t>(size)));
  return "(" + tree(begin, left) + "+" + tree(begin + left, size - left) + ")";
}

/// Runs the steps of all ranks. Value is the content of a shard: the additions as text, or nothing if only steps are
/// counted.
template <typename Value, typename Add>
class Job {
 public:
  struct Rank {
    RecursiveHalvingSchedule schedule;
    std::size_t steps_done = 0;
    std::map<int, Value> held, stashed;  // by shard
    int step = 0;                        // length of the longest chain of messages so far
  };

  Job(int size, bool with_values, Add add, const std::function<Value(int)>& first)
      : with_values_(with_values), add_(add), ranks_(size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_[rank].schedule = recursive_halving_schedule(rank, size);
      for (int shard = 0; with_values && shard < num_shards(size); ++shard) ranks_[rank].held[shard] = first(rank);
    }
  }

  /// Returns false if the ranks deadlock.
  bool run() {
    bool progressed = true;
    while (progressed) {
      progressed = false;
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
        while (run_next_step(rank)) progressed = true;
      }
    }
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return !next(rank); }) &&
           std::ranges::all_of(in_flight_, [](const auto& pair) { return pair.second.empty(); });
  }

  const std::vector<Rank>& ranks() const { return ranks_; }

 private:
  struct Message {
    ShardRange shards;
    std::map<int, Value> values;
    int step = 0;
  };

  static const RecursiveHalvingStep* next(const Rank& rank) {
    const auto& [reduce_scatter, all_gather, owner] = rank.schedule;
    if (rank.steps_done < reduce_scatter.size()) return &reduce_scatter[rank.steps_done];
    const std::size_t index = rank.steps_done - reduce_scatter.size();
    return index < all_gather.size() ? &all_gather[index] : nullptr;
  }

  template <typename Visit>
  void each(const ShardRange& shards, const Visit& visit) const {
    for (int i = 0; with_values_ && i < shards.count; ++i) visit(shards.first + i);
  }

  bool run_next_step(int number) {
    Rank& rank = ranks_[number];
    const RecursiveHalvingStep* const step = next(rank);
    if (step == nullptr) return false;
    if (step->sends()) {
      const auto& values = step->kind == Kind::send_stash ? rank.stashed : rank.held;
      Message message{.shards = step->shards, .values = {}, .step = rank.step + 1};
      each(step->shards, [&](int shard) { message.values[shard] = values.at(shard); });
      in_flight_[{number, step->peer}].push_back(std::move(message));
    } else if (step->kind == Kind::add_stash) {
      each(step->shards, [&](int shard) { rank.held[shard] = add_(rank.held[shard], rank.stashed.at(shard)); });
    } else if (!receive(rank, *step, in_flight_[{step->peer, number}])) {
      return false;
    }
    ++rank.steps_done;
    return true;
  }

  bool receive(Rank& rank, const RecursiveHalvingStep& step, std::deque<Message>& messages) {
    if (messages.empty()) return false;
    const Message message = std::move(messages.front());
    messages.pop_front();
    EXPECT_EQ(message.shards.first, step.shards.first);
    EXPECT_EQ(message.shards.count, step.shards.count);
    rank.step = std::max(rank.step, message.step);
    each(step.shards, [&](int shard) {
      const Value& received = message.values.at(shard);
      Value& held = rank.held[shard];
      if (step.kind == Kind::receive_and_add_right) held = add_(held, received);
      if (step.kind == Kind::receive_and_add_left) held = add_(received, held);
      if (step.kind == Kind::receive_result) held = received;
      if (step.kind == Kind::receive_stash) rank.stashed[shard] = received;
    });
    return true;
  }

  bool with_values_;
  Add add_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Message>> in_flight_;
};

TEST(RecursiveHalvingSchedule, EveryRankGetsTheSumOfTheTree) {
  for (int size = 2; size <= 70; ++size) {
    const auto add = [](const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; };
    Job<std::string, decltype(add)> job(size, true, add, [](int rank) { return std::to_string(rank); });
    ASSERT_TRUE(job.run()) << size;
    const std::string expected = tree(0, size);
    for (const auto& rank : job.ranks()) {
      ASSERT_EQ(static_cast<int>(rank.held.size()), num_shards(size));
      for (const auto& [shard, value] : rank.held) ASSERT_EQ(value, expected) << "shard " << shard << " of " << size;
    }
  }
}

TEST(RecursiveHalvingSchedule, OwnersCompleteEachShardOnceAndLast) {
  for (int size = 2; size <= 70; ++size) {
    std::map<int, int> completed;
    for (int rank = 0; rank < size; ++rank) {
      const auto schedule = recursive_halving_schedule(rank, size);
      const auto last = std::ranges::find_if(schedule.reduce_scatter.rbegin(), schedule.reduce_scatter.rend(),
                                             &RecursiveHalvingStep::adds);
      if (!schedule.owner) continue;
      ASSERT_NE(last, schedule.reduce_scatter.rend());
      ASSERT_EQ(last->shards.count, 1);
      ++completed[last->shards.first];
    }
    EXPECT_EQ(static_cast<int>(completed.size()), num_shards(size));
    for (const auto& [shard, times] : completed) EXPECT_EQ(times, 1) << "shard " << shard << " of " << size;
  }
}

int log2_of(int size) {
  return std::bit_width(static_cast<unsigned>(size - 1));
}

bool is_power_of_two(int size) {
  return std::has_single_bit(static_cast<unsigned>(size));
}

TEST(RecursiveHalvingSchedule, StepsGrowWithTheLogarithm) {
  struct Nothing {};
  const auto add = [](Nothing, Nothing) { return Nothing{}; };
  for (const int size : {2, 3, 5, 9, 15, 16, 17, 100, 255, 256, 257, 1000, 1024, 1025, 1536}) {
    Job<Nothing, decltype(add)> job(size, false, add, [](int) { return Nothing{}; });
    ASSERT_TRUE(job.run()) << size;
    const int max_steps = is_power_of_two(size) ? 2 * log2_of(size) : 4 * log2_of(size) + 4;
    for (const auto& rank : job.ranks()) ASSERT_LE(rank.step, max_steps) << size;
  }
}

// With a power of two of ranks, each rank sends as many bytes as in a ring: twice the tensor less one shard. With other
// numbers of ranks it sends at most twice that.
TEST(RecursiveHalvingSchedule, MessagesAndBytesOfARankAreBounded) {
  for (const int size : {2, 3, 9, 100, 1023, 1024, 1025, 10'000, 32'767, 32'769, 49'152, 65'535, 65'536}) {
    const bool even = is_power_of_two(size);
    const int max_messages = even ? 2 * log2_of(size) : 4 * log2_of(size) + 4;
    const std::int64_t max_shards = even ? 2 * (size - 1) : 4 * num_shards(size);
    for (int rank = 0; rank < size; ++rank) {
      const auto schedule = recursive_halving_schedule(rank, size);
      int messages = 0;
      std::int64_t shards = 0;
      for (const auto* part : {&schedule.reduce_scatter, &schedule.all_gather}) {
        for (const RecursiveHalvingStep& step : *part) {
          if (!step.sends()) continue;
          ++messages;
          shards += step.shards.count;
        }
      }
      ASSERT_LE(messages, max_messages) << rank << " of " << size;
      ASSERT_LE(shards, max_shards) << rank << " of " << size;
    }
  }
}

TEST(RecursiveHalvingSchedule, FewRanksAndLargeSumsUseTheDirectAlgorithm) {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  EXPECT_FALSE(is_recursive_halving_faster(8, 1));
  EXPECT_TRUE(is_recursive_halving_faster(64, mebibyte));
  EXPECT_FALSE(is_recursive_halving_faster(16, 100 * mebibyte));
  EXPECT_TRUE(is_recursive_halving_faster(1024, 100 * mebibyte)) << "a rank cannot connect to all";
}

TEST(RecursiveHalvingSchedule, ThePlannerChoosesTheSameAlgorithm) {
  for (int size = 2; size <= 100; ++size) {
    const std::size_t rounds = size <= comm::max_direct_ranks ? 1 : comm::bruck_schedule(0, size).size();
    ASSERT_EQ(static_cast<std::size_t>(plan::exchange_steps(size)), rounds) << size << " ranks";
    for (std::size_t bytes = 1; bytes <= std::size_t{1} << 28; bytes *= 4) {
      const bool planned = plan::schedule_for(size, static_cast<double>(bytes)) == plan::Schedule::halving;
      ASSERT_EQ(planned, is_recursive_halving_faster(size, bytes)) << size << " ranks, " << bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace tutti::test::recursive_halving_schedule_test
