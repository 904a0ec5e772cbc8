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

constexpr milliseconds between{50};

/// As a rank that looks again in 50 ms.
Ranks look_at(Silence& silence, Deadline now) {
  auto ranks = silent(silence, now);
  silence.sleeps_until(now + between);
  return ranks;
}

/// Looks every 50 ms, and each time the store answers with `beats` of what time it is.
template <typename Beats>
Ranks watch(Silence& silence, milliseconds until, const Beats& beats) {
  Ranks ranks;
  for (milliseconds now = between; now <= until; now += between) {
    silence.asked(begin + now);
    silence.answered();
    silence.heard(beats(now), begin + now);
    ranks = look_at(silence, begin + now);
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
  for (int now = 350; now < 1300; now += 50) EXPECT_EQ(look_at(silence, begin + milliseconds(now)), Ranks{}) << now;
  EXPECT_EQ(look_at(silence, begin + milliseconds(1300)), Ranks{the_store});
}

TEST(Silence, OfAStoreThatHasEndedIsToldUnlessItsHolderHadLeft) {
  for (const bool left : {false, true}) {
    Silence silence({0, 1}, 0, patience, begin);
    const auto beats = [&](milliseconds now) { return std::vector<std::int64_t>{left ? has_left : 1, now.count()}; };
    EXPECT_EQ(watch(silence, milliseconds(300), beats), Ranks{});
    silence.asked(begin + milliseconds(300));
    EXPECT_EQ(silence.lost(), left);
    for (int now = 350; now < 1300; now += 50) (void)look_at(silence, begin + milliseconds(now));
    if (!left) {
      EXPECT_EQ(look_at(silence, begin + milliseconds(1300)), Ranks{the_store});
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
  for (int now = 350; found.empty(); now += 50) found = look_at(silence, begin + milliseconds(now));
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
  EXPECT_EQ(look_at(silence, begin + std::chrono::hours(1)), Ranks{});
  // 200 ms of that hour count.
  for (int after = 50; after < 800; after += 50) {
    EXPECT_EQ(look_at(silence, begin + std::chrono::hours(1) + milliseconds(after)), Ranks{}) << after;
  }
  EXPECT_EQ(look_at(silence, begin + std::chrono::hours(1) + milliseconds(800)), Ranks{the_store});
}

TEST(Silence, ARareLookThatWasMeantToBeRareCountsInFull) {
  Silence silence({1}, 0, patience, begin);
  silence.asked(begin);
  silence.sleeps_until(begin + patience);
  EXPECT_EQ(silent(silence, begin + patience), Ranks{the_store});
}

TEST(Silence, IsAlsoOfThoseWhomAnotherRankOfTheCrewLooksAt) {
  Silence silence({1}, 0, patience, begin);
  silence.heard({5}, begin + milliseconds(400));
  silence.sleeps_until(begin + milliseconds(1400));
  silence.heard({5}, begin + milliseconds(1399));
  EXPECT_EQ(silent(silence, begin + milliseconds(1400)), Ranks{}) << "it was heard of at 400 ms, and asked for at 1399";
  silence.heard({5}, begin + milliseconds(1400));
  EXPECT_EQ(silent(silence, begin + milliseconds(1400)), Ranks{1});
}

TEST(Silence, IsLookedAtCloselyOnceHalfThePatienceIsOver) {
  Silence silence({1}, 0, patience, begin);
  EXPECT_FALSE(silence.is_in_doubt(begin + std::chrono::hours(1))) << "nothing was asked";
  silence.asked(begin);
  EXPECT_FALSE(silence.is_in_doubt(begin + milliseconds(499)));
  EXPECT_TRUE(silence.is_in_doubt(begin + milliseconds(500)));
  silence.answered();
  EXPECT_FALSE(silence.is_in_doubt(begin + milliseconds(500)));
  silence.heard({0}, begin + milliseconds(500));
  EXPECT_TRUE(silence.is_in_doubt(begin + milliseconds(500))) << "of rank 1";
  silence.heard({0}, begin + 2 * patience);
  EXPECT_FALSE(silence.is_in_doubt(begin + 2 * patience)) << "there is none any more";
}

TEST(Silence, SignsOfLifeOfManyCrewsAreRarer) {
  EXPECT_EQ(between_beats(2), milliseconds(250));
  EXPECT_EQ(between_beats(64), milliseconds(250));
  EXPECT_EQ(between_beats(1024), milliseconds(4000));
}

TEST(StoppedProcess, CountsFromTheMiddleBetweenTwoLooks) {
  StoppedProcess process(begin);
  EXPECT_EQ(process.look(begin + milliseconds(500), false), milliseconds(0));
  EXPECT_FALSE(process.is_stopped());
  EXPECT_EQ(process.look(begin + milliseconds(1000), true), milliseconds(250));
  EXPECT_TRUE(process.is_stopped());
  EXPECT_EQ(process.look(begin + milliseconds(1050), true), milliseconds(300));
  EXPECT_EQ(process.look(begin + milliseconds(1100), false), milliseconds(0));
  EXPECT_EQ(process.look(begin + milliseconds(1150), true), milliseconds(25));
}

TEST(StoppedProcess, InAHurryItIsGivenUpAsSoonAsItMayBe) {
  StoppedProcess process(begin);
  EXPECT_FALSE(process.is_given_up(milliseconds(500), true));
  process.look(begin + milliseconds(500), true);
  EXPECT_TRUE(process.is_given_up(milliseconds(500), true)) << "for up to 500 ms";
  EXPECT_FALSE(process.is_given_up(milliseconds(500), false));
  EXPECT_TRUE(process.is_given_up(milliseconds(250), false));
  EXPECT_FALSE(process.is_given_up(milliseconds(550), true));
}

TEST(StoppedProcess, DoesNotCountWhileWhoeverLooksWasStoppedToo) {
  StoppedProcess process(begin);
  EXPECT_EQ(process.look(begin + std::chrono::hours(1), true), milliseconds(250));
  EXPECT_EQ(process.look(begin + std::chrono::hours(2), true), milliseconds(350));
}

}  // namespace
}  // namespace tutti::comm::silence_test
