// Ranks: none. Tags and labels of channels that share connections.
#include "comm/mesh/tags.h"

#include <gtest/gtest.h>

#include <set>

#include "comm/mesh/labels.h"

namespace tutti::test::tags_test {
namespace {

using namespace tutti::comm;

TEST(MeshTags, TellMessagesApart) {
  std::set<int> tags;
  int count = 0;
  for (const int channel : {0, 1, 300, channel_of_words}) {
    for (const std::uint64_t operation : {0U, 1U, 1023U}) {
      for (const auto phase : {Phase::exchange, Phase::versions, Phase::results, Phase::data}) {
        for (const std::size_t length : {0U, 1U, 8U, 4096U, 25U << 20}) {
          const int tag = mesh_tag(channel, {.operation = operation, .phase = phase}, length);
          EXPECT_GE(tag, 0);
          tags.insert(tag);
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(tags.size(), static_cast<std::size_t>(count));
}

// Far apart, so that both are not under way at once.
TEST(MeshTags, RepeatAfterAThousandOperations) {
  const Tag early{.operation = 5, .phase = Phase::data};
  const Tag late{.operation = 5 + 1024, .phase = Phase::data};
  EXPECT_EQ(mesh_tag(3, early, 8), mesh_tag(3, late, 8));
}

TEST(Labels, AreNotTheSameAgain) {
  Labels labels;
  const auto first = labels.take();
  const auto second = labels.take();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->number, second->number);
  labels.give_back(*first);
  // The number rests until all others have been used.
  for (int left = channel_of_words - 2; left > 0; --left) {
    const auto next = labels.take();
    ASSERT_TRUE(next);
    EXPECT_NE(next->number, first->number);
  }
  const auto again = labels.take();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->number, first->number);
  EXPECT_FALSE(*again == *first);
  EXPECT_FALSE(labels.take());
}

}  // namespace
}  // namespace tutti::test::tags_test
