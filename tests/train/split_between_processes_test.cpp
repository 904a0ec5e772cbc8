// Accelerate's split_between_processes cases of test_script.py, without ranks.
#include "tutti/detail/train/split_between_processes.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numeric>

namespace tutti::test::split_between_processes_test {
namespace {

using Numbers = std::vector<int>;

Numbers count_to(int count) {
  Numbers numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(SplitBetweenProcesses, EveryItemComesOnceAndTheFirstRanksTakeTheExtras) {
  for (int size = 1; size <= 8; ++size) {
    for (int count = 0; count <= 20; ++count) {
      Numbers all;
      for (int rank = 0; rank < size; ++rank) {
        const Numbers share = split_between_processes(count_to(count), rank, size);
        EXPECT_EQ(std::ssize(share), count / size + (rank < count % size ? 1 : 0));
        all.insert(all.end(), share.begin(), share.end());
      }
      EXPECT_EQ(all, count_to(count));
    }
  }
}

TEST(SplitBetweenProcesses, PaddingRepeatsTheLastItemUntilAllHaveAsMany) {
  for (int size = 1; size <= 8; ++size) {
    for (int count = 1; count <= 20; ++count) {
      Numbers padding;
      for (int rank = 0; rank < size; ++rank) {
        const Numbers bare = split_between_processes(count_to(count), rank, size);
        const Numbers share = split_between_processes(count_to(count), rank, size, true);
        EXPECT_EQ(std::ssize(share), (count + size - 1) / size);
        padding.insert(padding.end(), share.begin() + std::ssize(bare), share.end());
      }
      EXPECT_EQ(padding, Numbers((size - count % size) % size, count - 1));  // no padding if the items divide evenly
    }
  }
  EXPECT_TRUE(split_between_processes(Numbers(), 1, 2, true).empty());
  EXPECT_EQ(share_of(5, 2, 4, true), (ProcessShare{.begin = 3, .end = 4, .padding = 1}));
}

using Map = std::map<std::string, at::Tensor>;

TEST(SplitBetweenProcesses, SplitsNestedPartsAlike) {
  const std::tuple inputs(count_to(8), std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h"},
                          Map{{"c", at::arange(8)}, {"d", at::arange(16).view({8, 2})}});
  const auto [numbers, texts, map] = split_between_processes(inputs, 1, 4);
  EXPECT_EQ(numbers, (Numbers{2, 3}));
  EXPECT_EQ(texts, (std::vector<std::string>{"c", "d"}));
  EXPECT_TRUE(map.at("c").equal(at::arange(2, 4)));
  EXPECT_TRUE(map.at("d").equal(at::arange(4, 8).view({2, 2})));
  EXPECT_EQ(std::get<0>(inputs), count_to(8));  // unchanged
  EXPECT_EQ(split_between_processes(std::pair(count_to(3), count_to(3)), 1, 2, true).second, (Numbers{2, 2}));
  EXPECT_TRUE(split_between_processes(Map(), 0, 2).empty());
}

TEST(SplitBetweenProcesses, SplitsTensorsByRows) {
  const at::Tensor data = at::arange(6).view({3, 2});
  EXPECT_TRUE(split_between_processes(data, 0, 2).equal(at::arange(4).view({2, 2})));
  EXPECT_TRUE(split_between_processes(data, 1, 2).equal(at::arange(4, 6).view({1, 2})));
  EXPECT_TRUE(split_between_processes(data, 1, 2, true).equal(data.narrow(0, 2, 1).expand({2, 2})));
  EXPECT_EQ(split_between_processes(data, 3, 4).size(0),
            0);  // fewer rows than ranks: an empty share, not the last row again
  EXPECT_TRUE(split_between_processes(data, 3, 4, true).equal(data.narrow(0, 2, 1)));
}

TEST(SplitBetweenProcesses, RefusesWhatCannotBeSplit) {
  EXPECT_THROW((void)split_between_processes(std::pair(count_to(3), count_to(4)), 0, 2), UsageError);
  EXPECT_THROW((void)split_between_processes(Map{{"a", at::ones({2})}, {"b", at::ones({3})}}, 0, 2), UsageError);
  EXPECT_THROW((void)split_between_processes(at::scalar_tensor(1), 0, 2), UsageError);
  EXPECT_THROW((void)split_between_processes(count_to(3), 2, 2), UsageError);
}

}  // namespace
}  // namespace tutti::test::split_between_processes_test
