// The file of --hostfile.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "launch/tutti_process.h"
#include "tutti/core/error.h"
#include "tutti/detail/launch/launch_hosts.h"

namespace tutti::test::hostfile_test {
namespace {

using Hosts = std::vector<HostSlots>;

TEST(Hostfile, ReadsEveryForm) {
  EXPECT_EQ(read_hostfile("f", "a slots=2\nb slots=2\n", 1), (Hosts{{"a", 2}, {"b", 2}}));
  EXPECT_EQ(read_hostfile("f", "# two hosts\n\n  a:3   # first\nme@b.example:3", 1),
            (Hosts{{"a", 3}, {"me@b.example", 3}}));
  EXPECT_EQ(read_hostfile("f", "a\nb slots=4\n", 4), (Hosts{{"a", 4}, {"b", 4}}));
  EXPECT_EQ(read_hostfile("f", "fd00::2\nfd00::3 slots=4\n", 4), (Hosts{{"fd00::2", 4}, {"fd00::3", 4}}));
}

TEST(Hostfile, NamesTheInvalidLine) {
  const std::vector<std::pair<std::string, std::string>> cases{{"", "f names no host"},
                                                               {"# a\n", "f names no host"},
                                                               {"a slots=0", "f:1: 'a slots=0'"},
                                                               {"a\na slots=x", "f:2: 'a slots=x'"},
                                                               {"a slots=2 3", "f:1: "},
                                                               {"a max=2", "f:1: "},
                                                               {"a:", "f:1: "},
                                                               {":2", "f:1: "},
                                                               {"a slots=999999999999", "f:1: "},
                                                               {"-oProxyCommand=x slots=1", "f:1: "},
                                                               {"a slots=1\nb slots=2", "b has 2 and a has 1 slots"}};
  for (const auto& [text, part] : cases) {
    try {
      read_hostfile("f", text, 1);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_TRUE(contains(error.what(), part)) << part << " is not in: " << error.what();
    }
  }
}

}  // namespace
}  // namespace tutti::test::hostfile_test
