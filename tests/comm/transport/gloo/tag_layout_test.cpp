// Ranks: none. Tags and labels of channels that share connections.
#include "comm/transport/gloo/tag_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "comm/transport/gloo/channel_ids.h"

namespace tutti::test::tag_layout_test {
namespace {

using namespace tutti::comm;

TEST(GlooTags, DistinguishMessages) {
  std::set<int> tags;
  int count = 0;
  for (const int channel : {0, 1, 300, control_channel}) {
    for (const std::uint64_t operation : {0U, 1U, 1023U}) {
      for (const auto phase : {Phase::small_all_gather, Phase::reduce_scatter, Phase::all_gather, Phase::data}) {
        for (const std::size_t length : {0U, 1U, 8U, 4096U, 25U << 20}) {
          const int tag = gloo_tag(channel, {.operation = operation, .phase = phase}, length);
          EXPECT_GE(tag, 0);
          tags.insert(tag);
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(tags.size(), static_cast<std::size_t>(count));
}

// Operations with equal tags are so far apart that both are not in flight at once.
TEST(GlooTags, RepeatAfterAThousandOperations) {
  const Tag early{.operation = 5, .phase = Phase::data};
  const Tag late{.operation = 5 + 1024, .phase = Phase::data};
  EXPECT_EQ(gloo_tag(3, early, 8), gloo_tag(3, late, 8));
}

TEST(ChannelIdPool, AreReusedWithANewGeneration) {
  ChannelIdPool ids;
  const auto first = ids.acquire();
  const auto second = ids.acquire();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->number, second->number);
  ids.release(*first);
  // The number is not reused until all other numbers have been used.
  for (int left = control_channel - 2; left > 0; --left) {
    const auto next = ids.acquire();
    ASSERT_TRUE(next);
    EXPECT_NE(next->number, first->number);
  }
  const auto again = ids.acquire();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->number, first->number);
  EXPECT_FALSE(*again == *first);
  EXPECT_FALSE(ids.acquire());
}

}  // namespace
}  // namespace tutti::test::tag_layout_test
