#include "sync/round_header.h"

#include <gtest/gtest.h>

namespace tutti::sync::round_header_test {
namespace {

using Openings = std::vector<RoundOpening>;
using Closings = std::vector<RoundClosing>;

RoundOpening plain_pass() {
  return {.passes = 1, .weighting = Weighting::plain};
}
RoundOpening weighted_pass(double weight) {
  return {.passes = 1, .weighting = Weighting::weighted, .weight = weight};
}

TEST(RoundHeader, PlainWindowsDivideByTheNumberOfRanks) {
  const RoundTerms terms = judge(Openings{plain_pass(), plain_pass(), {}, plain_pass()});
  EXPECT_FALSE(terms.divergence);
  EXPECT_FALSE(terms.empty);
  EXPECT_DOUBLE_EQ(terms.scale, 0.25);
}

TEST(RoundHeader, WeightedWindowsDivideByAllWeights) {
  const RoundTerms terms = judge(Openings{weighted_pass(3), weighted_pass(0), {}});
  EXPECT_FALSE(terms.divergence);
  EXPECT_DOUBLE_EQ(terms.total_weight, 3);
  EXPECT_DOUBLE_EQ(terms.scale, 1.0 / 3);
}

TEST(RoundHeader, ATotalWeightOfZeroIsNoMean) {
  EXPECT_TRUE(judge(Openings{weighted_pass(0), weighted_pass(0)}).divergence);
}

TEST(RoundHeader, NobodyRanAPass) {
  const RoundTerms terms = judge(Openings{{}, {}});
  EXPECT_TRUE(terms.empty);
  EXPECT_FALSE(terms.divergence);
}

TEST(RoundHeader, NamesTheRankThatIsAtAnotherStep) {
  Openings openings{plain_pass(), plain_pass(), plain_pass()};
  openings[2].step = 5;
  const RoundTerms terms = judge(openings);
  ASSERT_TRUE(terms.divergence);
  EXPECT_NE(terms.divergence->find("rank 2 at step 5"), std::string::npos) << *terms.divergence;
}

TEST(RoundHeader, NamesRanksThatMixAccumulateWithPlainPasses) {
  const RoundTerms terms = judge(Openings{{}, weighted_pass(1), plain_pass()});
  ASSERT_TRUE(terms.divergence);
  EXPECT_NE(terms.divergence->find("rank 2 ran its backward passes outside"), std::string::npos) << *terms.divergence;
  EXPECT_NE(terms.divergence->find("rank 1 inside"), std::string::npos) << *terms.divergence;
}

TEST(RoundHeader, SeesParametersThatDrifted) {
  Openings openings{plain_pass(), plain_pass()};
  EXPECT_FALSE(judge(openings).drifted);
  openings[1].parameters = 7;
  EXPECT_TRUE(judge(openings).drifted);
}

TEST(RoundHeader, NamesEveryRankThatAbandonedItsPart) {
  Closings closings(3);
  EXPECT_FALSE(judge(closings));
  closings[1] = abandoned_closing("an exception");
  closings[2] = abandoned_closing(std::string(500, 'x'));  // cut, not overrun
  const auto why = judge(closings);
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("rank 1 abandoned its part of this step: an exception"), std::string::npos) << *why;
  EXPECT_NE(why->find("rank 2"), std::string::npos) << *why;
}

TEST(RoundHeader, OneRankThatNeedsAnotherRoundIsEnough) {
  Closings closings(2);
  EXPECT_FALSE(needs_another(closings));
  closings[1].again = true;
  EXPECT_TRUE(needs_another(closings));
}

TEST(RoundOpening, WhoeverWaitedLeastWasLate) {
  const std::vector<RoundOpening> openings{{.waited = 0.5}, {.waited = 0.1}, {.waited = 0.4}};
  const std::vector<double> late = lateness(openings);
  ASSERT_EQ(late.size(), 3U);
  EXPECT_DOUBLE_EQ(late[0], 0);
  EXPECT_DOUBLE_EQ(late[1], 0.4);
  EXPECT_DOUBLE_EQ(late[2], 0.5 - 0.4);
}

}  // namespace
}  // namespace tutti::sync::round_header_test
