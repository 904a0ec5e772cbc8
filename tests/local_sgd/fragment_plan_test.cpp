// Every element is exchanged exactly once, for any sizes.
#include "local_sgd/fragment_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tutti/core/error.h"

namespace tutti::local_sgd::fragment_plan_test {
namespace {

// The number of fragments that hold each element of each parameter. Also checks that fragments have no gaps.
std::vector<std::vector<int>> coverage(const std::vector<std::int64_t>& sizes, const std::vector<FragmentPlan>& plans) {
  std::vector<std::vector<int>> covered;
  for (const std::int64_t size : sizes) covered.emplace_back(static_cast<std::size_t>(size), 0);
  for (const FragmentPlan& plan : plans) {
    std::int64_t end = 0;
    for (const Piece& piece : plan.pieces) {
      EXPECT_EQ(piece.begin, end);
      EXPECT_GT(piece.length, 0);
      end += piece.length;
      for (std::int64_t i = 0; i < piece.length; ++i) {
        ++covered.at(static_cast<std::size_t>(piece.parameter)).at(static_cast<std::size_t>(piece.offset + i));
      }
    }
    EXPECT_EQ(end, plan.elements);
  }
  return covered;
}

TEST(FragmentPlan, CoversEveryElementOnceForRandomSizes) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(draw(1, 12)));
    for (std::int64_t& size : sizes) size = draw(0, 3) == 0 ? 0 : draw(1, 40);
    const std::int64_t elements = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    if (elements == 0) continue;
    const int fragments = draw(1, static_cast<int>(std::min<std::int64_t>(elements, 9)));
    const auto plans = plan_fragments(sizes, fragments);
    ASSERT_EQ(plans.size(), static_cast<std::size_t>(fragments));
    for (const auto& parameter : coverage(sizes, plans)) {
      for (const int times : parameter) ASSERT_EQ(times, 1);
    }
    for (const FragmentPlan& plan : plans) {
      EXPECT_GE(plan.elements, elements / fragments);
      EXPECT_LE(plan.elements, elements / fragments + 1);
    }
  }
}

TEST(FragmentPlan, MessagesCoverAVectorOnceForRandomCaps) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::int64_t elements = std::uniform_int_distribution<int>(0, 500)(random);
    const std::int64_t cap = std::uniform_int_distribution<int>(1, 600)(random);
    std::int64_t end = 0;
    for (const ElementRange& range : plan_messages(elements, cap)) {
      ASSERT_EQ(range.begin, end);
      ASSERT_GT(range.length, 0);
      ASSERT_LE(range.length, cap);
      end += range.length;
    }
    ASSERT_EQ(end, elements);
  }
}

TEST(FragmentPlan, PartsCoverAVectorOnce) {
  for (std::int64_t elements = 0; elements < 30; ++elements) {
    for (std::int64_t parts = 1; parts < 9; ++parts) {
      std::int64_t end = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        const ElementRange range = part_of(elements, part, parts);
        EXPECT_EQ(range.begin, end);
        end += range.length;
      }
      EXPECT_EQ(end, elements);
    }
  }
}

TEST(FragmentPlan, KeepsTheLastTensorWhenTheOthersFillACap) {
  const std::vector<std::int64_t> sizes{4, 4, 2};
  const auto covered = coverage(sizes, plan_fragments(sizes, 2));
  EXPECT_EQ(covered.back(), (std::vector<int>{1, 1}));
}

TEST(FragmentPlan, RefusesMoreFragmentsThanElements) {
  const std::vector<std::int64_t> sizes{2, 0, 1};
  EXPECT_EQ(plan_fragments(sizes, 3).size(), 3U);
  EXPECT_THROW(plan_fragments(sizes, 4), UsageError);
  EXPECT_THROW(plan_fragments({}, 1), UsageError);
}

}  // namespace
}  // namespace tutti::local_sgd::fragment_plan_test
