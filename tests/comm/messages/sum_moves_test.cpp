// Ranks: none. Who sends which part of a sum to whom, for many ranks.
#include "comm/messages/sum_moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/messages/exchange.h"
#include "comm/sums/combine.h"
#include "plan/traffic.h"

namespace tutti::test::sum_moves_test {
namespace {

using namespace tutti::comm;
using Kind = SumMove::Kind;

/// A sum by its additions: "((0+1)+2)".
std::string tree(int begin, int size) {
  if (size == 1) return std::to_string(begin);
  const int left = static_cast<int>(left_of_tree(static_cast<std::size_t>(size)));
  return "(" + tree(begin, left) + "+" + tree(begin + left, size - left) + ")";
}

/// Carries out the moves of all ranks. Value is what a slice holds: the additions, or nothing where only steps count.
template <typename Value, typename Add>
class Job {
 public:
  struct Rank {
    SumMoves moves;
    std::size_t made = 0;
    std::map<int, Value> own, aside;  // by slice
    int step = 0;                     // of the longest chain of messages that led here
  };

  Job(int size, bool with_values, Add add, const std::function<Value(int)>& first)
      : with_values_(with_values), add_(add), ranks_(size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_[rank].moves = sum_moves(rank, size);
      for (int slice = 0; with_values && slice < slices_of_sum(size); ++slice) ranks_[rank].own[slice] = first(rank);
    }
  }

  /// False where ranks wait for one another.
  bool run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
        while (make_next(rank)) moved = true;
      }
    }
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return !next(rank); }) &&
           std::ranges::all_of(under_way_, [](const auto& pair) { return pair.second.empty(); });
  }

  const std::vector<Rank>& ranks() const { return ranks_; }

 private:
  struct Message {
    SliceRun slices;
    std::map<int, Value> values;
    int step = 0;
  };

  static const SumMove* next(const Rank& rank) {
    const auto& [adding, spreading, owner] = rank.moves;
    if (rank.made < adding.size()) return &adding[rank.made];
    const std::size_t place = rank.made - adding.size();
    return place < spreading.size() ? &spreading[place] : nullptr;
  }

  template <typename Visit>
  void each(const SliceRun& slices, const Visit& visit) const {
    for (int i = 0; with_values_ && i < slices.count; ++i) visit(slices.first + i);
  }

  bool make_next(int number) {
    Rank& rank = ranks_[number];
    const SumMove* const move = next(rank);
    if (move == nullptr) return false;
    if (move->sends()) {
      const auto& values = move->kind == Kind::pass_aside ? rank.aside : rank.own;
      Message message{.slices = move->slices, .values = {}, .step = rank.step + 1};
      each(move->slices, [&](int slice) { message.values[slice] = values.at(slice); });
      under_way_[{number, move->peer}].push_back(std::move(message));
    } else if (move->kind == Kind::add_aside) {
      each(move->slices, [&](int slice) { rank.own[slice] = add_(rank.own[slice], rank.aside.at(slice)); });
    } else if (!receive(rank, *move, under_way_[{move->peer, number}])) {
      return false;
    }
    ++rank.made;
    return true;
  }

  bool receive(Rank& rank, const SumMove& move, std::deque<Message>& messages) {
    if (messages.empty()) return false;
    const Message message = std::move(messages.front());
    messages.pop_front();
    EXPECT_EQ(message.slices.first, move.slices.first);
    EXPECT_EQ(message.slices.count, move.slices.count);
    rank.step = std::max(rank.step, message.step);
    each(move.slices, [&](int slice) {
      const Value& came = message.values.at(slice);
      Value& own = rank.own[slice];
      if (move.kind == Kind::add_above) own = add_(own, came);
      if (move.kind == Kind::add_below) own = add_(came, own);
      if (move.kind == Kind::receive_result) own = came;
      if (move.kind == Kind::lay_aside) rank.aside[slice] = came;
    });
    return true;
  }

  bool with_values_;
  Add add_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Message>> under_way_;
};

TEST(SumMoves, EveryRankGetsTheSumOfTheTree) {
  for (int size = 2; size <= 70; ++size) {
    const auto add = [](const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; };
    Job<std::string, decltype(add)> job(size, true, add, [](int rank) { return std::to_string(rank); });
    ASSERT_TRUE(job.run()) << size;
    const std::string expected = tree(0, size);
    for (const auto& rank : job.ranks()) {
      ASSERT_EQ(static_cast<int>(rank.own.size()), slices_of_sum(size));
      for (const auto& [slice, value] : rank.own) ASSERT_EQ(value, expected) << "slice " << slice << " of " << size;
    }
  }
}

TEST(SumMoves, OwnersCompleteEachSliceOnceAndLast) {
  for (int size = 2; size <= 70; ++size) {
    std::map<int, int> completed;
    for (int rank = 0; rank < size; ++rank) {
      const auto moves = sum_moves(rank, size);
      const auto last = std::ranges::find_if(moves.adding.rbegin(), moves.adding.rend(), &SumMove::adds);
      if (!moves.owner) continue;
      ASSERT_NE(last, moves.adding.rend());
      ASSERT_EQ(last->slices.count, 1);
      ++completed[last->slices.first];
    }
    EXPECT_EQ(static_cast<int>(completed.size()), slices_of_sum(size));
    for (const auto& [slice, times] : completed) EXPECT_EQ(times, 1) << "slice " << slice << " of " << size;
  }
}

int log2_of(int size) {
  return std::bit_width(static_cast<unsigned>(size - 1));
}

bool is_power_of_two(int size) {
  return std::has_single_bit(static_cast<unsigned>(size));
}

TEST(SumMoves, StepsGrowWithTheLogarithm) {
  struct Nothing {};
  const auto add = [](Nothing, Nothing) { return Nothing{}; };
  for (const int size : {2, 3, 5, 9, 15, 16, 17, 100, 255, 256, 257, 1000, 1024, 1025, 1536}) {
    Job<Nothing, decltype(add)> job(size, false, add, [](int) { return Nothing{}; });
    ASSERT_TRUE(job.run()) << size;
    const int most = is_power_of_two(size) ? 2 * log2_of(size) : 4 * log2_of(size) + 4;
    for (const auto& rank : job.ranks()) ASSERT_LE(rank.step, most) << size;
  }
}

// A power of two of ranks sends the bytes of a ring: twice the gradient's, but for a slice. Others at most twice that.
TEST(SumMoves, MessagesAndBytesOfARankAreBounded) {
  for (const int size : {2, 3, 9, 100, 1023, 1024, 1025, 10'000, 32'767, 32'769, 49'152, 65'535, 65'536}) {
    const bool even = is_power_of_two(size);
    const int most_messages = even ? 2 * log2_of(size) : 4 * log2_of(size) + 4;
    const std::int64_t most_slices = even ? 2 * (size - 1) : 4 * slices_of_sum(size);
    for (int rank = 0; rank < size; ++rank) {
      const auto moves = sum_moves(rank, size);
      int messages = 0;
      std::int64_t slices = 0;
      for (const auto* part : {&moves.adding, &moves.spreading}) {
        for (const SumMove& move : *part) {
          if (!move.sends()) continue;
          ++messages;
          slices += move.slices.count;
        }
      }
      ASSERT_LE(messages, most_messages) << rank << " of " << size;
      ASSERT_LE(slices, most_slices) << rank << " of " << size;
    }
  }
}

TEST(SumMoves, FewRanksAndLargeSumsGoStraightToTheirOwners) {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  EXPECT_FALSE(is_halving_faster(8, 1));
  EXPECT_TRUE(is_halving_faster(64, mebibyte));
  EXPECT_FALSE(is_halving_faster(16, 100 * mebibyte));
  EXPECT_TRUE(is_halving_faster(1024, 100 * mebibyte)) << "a rank cannot connect to all";
}

TEST(SumMoves, ArePlannedAsTheyAreChosen) {
  for (int size = 2; size <= 100; ++size) {
    const std::size_t rounds = size <= comm::most_ranks_told_directly ? 1 : comm::exchange_rounds(0, size).size();
    ASSERT_EQ(static_cast<std::size_t>(plan::exchange_rounds(size)), rounds) << size << " ranks";
    for (std::size_t bytes = 1; bytes <= std::size_t{1} << 28; bytes *= 4) {
      const bool planned = plan::schedule_for(size, static_cast<double>(bytes)) == plan::Schedule::halving;
      ASSERT_EQ(planned, is_halving_faster(size, bytes)) << size << " ranks, " << bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace tutti::test::sum_moves_test
