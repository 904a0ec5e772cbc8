// Ranks: none. Lines of the program that the compiler fills in.
#include "tutti/detail/core/call_site.h"

#include <gtest/gtest.h>

#include <thread>

#include "tutti/detail/core/call_site_scope.h"

namespace tutti::call_site_test {
namespace {

CallSite where_called(int /*first*/ = 0, const CallSite& where = CallSite::here()) {
  return where;
}

struct Options {
  int number = 0;
  CallSite where = CallSite::here();
};

CallSite where_given(const Options& options = {}) {
  return options.where;
}

std::string line(int number) {
  return "call_site_test.cpp:" + std::to_string(number);
}

TEST(CallSite, ADefaultArgumentIsTheCallersLine) {
  EXPECT_EQ(where_called().describe(), line(__LINE__));
  EXPECT_EQ(where_called(1).describe(), line(__LINE__));
  const CallSite other{.file = "train.cpp", .line = 42};
  EXPECT_EQ(where_called(1, other).describe(), "train.cpp:42");
}

TEST(CallSite, AMemberInitializerIsTheLineOfItsObject) {
  EXPECT_EQ(where_given().describe(), line(__LINE__));
  EXPECT_EQ(where_given({}).describe(), line(__LINE__));
  EXPECT_EQ(where_given({.number = 3}).describe(), line(__LINE__));
  const Options above{.number = 3};
  const int where_above = __LINE__ - 1;
  EXPECT_EQ(where_given(above).describe(), line(where_above));
}

TEST(CallSite, AnUnknownSiteIsEmpty) {
  EXPECT_FALSE(CallSite{}.known());
  EXPECT_EQ(CallSite{}.describe(), "");
  EXPECT_EQ((CallSite{.file = "backward()"}.describe()), "backward()");
  EXPECT_FALSE(where_given({.where = {}}).known());
}

TEST(CallSite, HasNoFolders) {
  EXPECT_STREQ(CallSite::here("/home/user/train.cpp", 1).file, "train.cpp");
  EXPECT_STREQ(CallSite::here("train.cpp", 1).file, "train.cpp");
}

TEST(CallSiteScope, TheInnermostKnownSiteCounts) {
  EXPECT_FALSE(CallSiteScope::current().known());
  {
    const CallSiteScope outer({.file = "train.cpp", .line = 1});
    const CallSiteScope unknown(CallSite{});
    EXPECT_EQ(CallSiteScope::current().describe(), "train.cpp:1");
    {
      const CallSiteScope inner({.file = "callback.cpp", .line = 2});
      EXPECT_EQ(CallSiteScope::current().describe(), "callback.cpp:2");
    }
    EXPECT_EQ(CallSiteScope::current().describe(), "train.cpp:1");
  }
  EXPECT_FALSE(CallSiteScope::current().known());
}

TEST(CallSiteScope, ATextCountsIfNoLineIsKnown) {
  const CallSiteScope words({.file = "backward()"});
  EXPECT_EQ(CallSiteScope::current().describe(), "backward()");
  const CallSiteScope line({.file = "train.cpp", .line = 1});
  const CallSiteScope again({.file = "backward()"});
  EXPECT_EQ(CallSiteScope::current().describe(), "train.cpp:1");
}

TEST(CallSiteScope, EachThreadHasItsOwn) {
  const CallSiteScope here({.file = "train.cpp", .line = 1});
  std::thread([] { EXPECT_FALSE(CallSiteScope::current().known()); }).join();
}

}  // namespace
}  // namespace tutti::call_site_test
