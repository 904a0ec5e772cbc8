#include "plan/units.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::plan::units_test {
namespace {

TEST(PlanUnits, KnowLinksByName) {
  for (const Link& known : known_links()) EXPECT_EQ(read_link(known.name).gbit, known.gbit);
  EXPECT_EQ(read_link("10gbit").gbit, 10);
}

TEST(PlanUnits, ReadAUserDefinedLink) {
  const Link link = read_link("lab=2.5,0.1");
  EXPECT_EQ(link.name, "lab");
  EXPECT_EQ(link.latency_us, 2.5);
  EXPECT_EQ(link.gbit, 0.1);
  EXPECT_EQ(read_link("1gbit=9,1").latency_us, 9);
}

TEST(PlanUnits, ReadSeveralLinks) {
  const auto links = read_links("10gbit,25gbit,1gbit");
  ASSERT_EQ(links.size(), 3U);
  EXPECT_EQ(links[0].name, "10gbit");
  EXPECT_EQ(links[2].name, "1gbit");
  EXPECT_EQ(read_links("lab=2.5,0.1").at(0).gbit, 0.1);
  for (const char* word : {"", ",", "10gbit,", "10gbit,,1gbit", "10gbit,5gbit", "10gbit,lab=3,4"}) {
    EXPECT_THROW(read_links(word), UsageError) << word;
  }
}

TEST(PlanUnits, RefuseInvalidLinks) {
  for (const char* word : {"", "5gbit", "lab", "lab=", "lab=3", "lab=3,", "lab=3,0", "lab=-1,1", "lab=3,4,5", "=3,4",
                           "lab=x,1", "lab=inf,1", "lab,1=2", "lab=1e300,1", "lab=1,1e-300"}) {
    EXPECT_THROW(read_link(word), UsageError) << word;
  }
}

TEST(PlanUnits, ReadSizes) {
  EXPECT_EQ(read_bytes("100"), 100);
  EXPECT_EQ(read_bytes("27.4MB"), 27.4e6);
  EXPECT_EQ(read_bytes("2KiB"), 2048);
  EXPECT_EQ(read_bytes("1.5GB"), 1.5e9);
}

TEST(PlanUnits, RefuseInvalidSizes) {
  for (const char* word : {"", "MB", "0", "-1MB", "1XB", "1 MB", "many", "1.2.3", "infMB"}) {
    EXPECT_THROW(read_bytes(word), UsageError) << word;
  }
}

}  // namespace
}  // namespace tutti::plan::units_test
