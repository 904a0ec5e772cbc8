// Ranks: none. The list of failure reports at the store.
#include "comm/rendezvous/store_bytes.h"

#include <gtest/gtest.h>

namespace tutti::comm::store_bytes_test {
namespace {

TEST(StoreBytes, TheListKeepsTheLastEntryOfEachRank) {
  const std::string report = "1 17 30000 2 3 1 all_reduce 'loss' (operation 17)";
  const std::string list =
      encode_entry(2, report) + encode_entry(0, "") + encode_entry(2, "again 7 x\n") + encode_entry(1, report);
  const auto entries = parse_entries(list, 4);
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0], "");
  EXPECT_EQ(entries[1], report);
  EXPECT_EQ(entries[2], "again 7 x\n");
  EXPECT_FALSE(entries[3]);
  EXPECT_EQ(parse_entries("", 1), std::vector<std::optional<std::string>>(1));
}

TEST(StoreBytes, EntriesOfRanksBeyondTheSizeAreLeftOut) {
  const auto entries = parse_entries(encode_entry(2, "of three") + encode_entry(0, "a") + encode_entry(1, "b"), 2);
  EXPECT_EQ(entries, (std::vector<std::optional<std::string>>{"a", "b"}));
}

TEST(StoreBytes, AMalformedListIsReadUpToTheError) {
  for (const std::string wrong : {"4 1 x", "-1 1 x", "1 99 x", "1 18446744073709551615 x", "1", "1 2", "x", "1 -1 x"}) {
    const auto entries = parse_entries(encode_entry(0, "fine") + wrong, 2);
    EXPECT_EQ(entries[0], "fine") << wrong;
    EXPECT_FALSE(entries[1]) << wrong;
  }
}

}  // namespace
}  // namespace tutti::comm::store_bytes_test
