// One process, no store.
#include "comm/meeting/silence.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti::comm::silence_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr milliseconds patience{1000};
constexpr Deadline begin{};

constexpr int the_store = -7;

Ranks silent(Silence& silence, Deadline now) {
  const auto found = silence.look(now);
  return found.store ? Ranks{the_store} : found.ranks;
}

/// Looks every 50 ms, and each time the store answers with `beats` of what time it is.
template <typename Beats>
Ranks watch(Silence& silence, milliseconds until, const Beats& beats) {
  constexpr milliseconds between{50};
  Ranks ranks;
  for (milliseconds now = between; now <= until; now += between) {
    silence.asked(begin + now);
    silence.heard(beats(now), begin + now);
    ranks = silent(silence, begin + now);
  }
  return ranks;
}

TEST(Silence, IsOfThoseWhoseNumberStandsStill) {
  Silence silence({5, 3}, 0, patience, begin);
  // 5 stands still from 500 ms on.
  const auto beats = [](milliseconds now) {
    return std::vector<std::int64_t>{std::min<std::int64_t>(now.count(), 500), now.count()};
  };
  EXPECT_EQ(watch(silence, milliseconds(1450), beats), Ranks{});
  Silence again({5, 3}, 0, patience, begin);
  EXPECT_EQ(watch(again, milliseconds(1500), beats), Ranks{5});
}

TEST(Silence, OfTheStoreIsTold) {
  Silence silence({5}, 2, patience, begin);
  EXPECT_EQ(watch(silence, milliseconds(300), [](milliseconds now) { return std::vector{now.count()}; }), Ranks{});
  silence.asked(begin + milliseconds(300));
  for (int now = 350; now < 1300; now += 50) EXPECT_EQ(silent(silence, begin + milliseconds(now)), Ranks{}) << now;
  EXPECT_EQ(silent(silence, begin + milliseconds(1300)), Ranks{the_store});
}

TEST(Silence, OfAStoreThatHasEndedIsToldUnlessItsHolderHadLeft) {
  for (const bool left : {false, true}) {
    Silence silence({0, 1}, 0, patience, begin);
    const auto beats = [&](milliseconds now) { return std::vector<std::int64_t>{left ? has_left : 1, now.count()}; };
    EXPECT_EQ(watch(silence, milliseconds(300), beats), Ranks{});
    silence.asked(begin + milliseconds(300));
    EXPECT_EQ(silence.lost(), left);
    for (int now = 350; now < 1300; now += 50) (void)silence.look(begin + milliseconds(now));
    if (!left) {
      EXPECT_EQ(silent(silence, begin + milliseconds(1300)), Ranks{the_store});
    }
  }
}

TEST(Silence, AHolderThatIsNotWatchedMaySayGoodByeToo) {
  Silence silence({1}, 0, patience, begin);
  silence.holder_says_good_bye();
  silence.asked(begin);
  EXPECT_TRUE(silence.lost());
}

TEST(Silence, OfTheStoreSaysNothingOfOthers) {
  Silence silence({1, 2}, 0, patience, begin);
  EXPECT_EQ(watch(silence, milliseconds(300),
                  [](milliseconds now) {
                    return std::vector{now.count(), now.count()};
                  }),
            Ranks{});
  silence.asked(begin + milliseconds(400));
  Ranks found;
  for (int now = 350; found.empty(); now += 50) found = silent(silence, begin + milliseconds(now));
  EXPECT_EQ(found, Ranks{the_store});
}

TEST(Silence, OfThoseThatHaveLeftIsNoMatter) {
  Silence silence({1, 2}, 0, patience, begin);
  const auto beats = [](milliseconds) { return std::vector<std::int64_t>{has_left, 7}; };
  EXPECT_EQ(watch(silence, milliseconds(3000), beats), Ranks{2});
}

TEST(Silence, DoesNotCountWhileThisProcessWasStoppedItself) {
  Silence silence({1}, 0, patience, begin);
  EXPECT_EQ(watch(silence, milliseconds(300), [](milliseconds now) { return std::vector{now.count()}; }), Ranks{});
  silence.asked(begin + milliseconds(300));
  EXPECT_EQ(silent(silence, begin + std::chrono::hours(1)), Ranks{});
  // 200 ms of that hour count.
  for (int after = 50; after < 800; after += 50) {
    EXPECT_EQ(silent(silence, begin + std::chrono::hours(1) + milliseconds(after)), Ranks{}) << after;
  }
  EXPECT_EQ(silent(silence, begin + std::chrono::hours(1) + milliseconds(800)), Ranks{the_store});
}

TEST(Silence, SignsOfLifeOfManyRanksAreRarer) {
  EXPECT_EQ(between_beats(2), milliseconds(150));
  EXPECT_EQ(between_beats(64), milliseconds(150));
  EXPECT_EQ(between_beats(1024), milliseconds(2400));
}

}  // namespace
}  // namespace tutti::comm::silence_test
