#include "core/slurm_nodes.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::slurm_nodes_test {
namespace {

using Names = std::vector<std::string>;

TEST(SlurmNodes, ExpandsLists) {
  const std::vector<std::pair<std::string, Names>> cases{
      {"node1", {"node1"}},
      {"node[01-03,07],gpu1", {"node01", "node02", "node03", "node07", "gpu1"}},
      {"a,b-c.example,d", {"a", "b-c.example", "d"}},
      {"node[8-11]", {"node8", "node9", "node10", "node11"}},
      {"node[098-101]-ib", {"node098-ib", "node099-ib", "node100-ib", "node101-ib"}},
      {"rack[0-1]n[1-2]", {"rack0n1", "rack0n2", "rack1n1", "rack1n2"}},
      {"gnode[10,20,25,37]", {"gnode10", "gnode20", "gnode25", "gnode37"}},
      {"[1-2]", {"1", "2"}},
  };
  for (const auto& [list, nodes] : cases) EXPECT_EQ(expand_nodelist("LIST", list), nodes) << list;
}

TEST(SlurmNodes, RefusesInvalidLists) {
  for (const std::string list : {"",
                                 ",",
                                 "a,",
                                 ",a",
                                 "a,,b",
                                 "n[",
                                 "n]",
                                 "n[1",
                                 "n1]",
                                 "n[]",
                                 "n[1-]",
                                 "n[-1]",
                                 "n[2-1]",
                                 "n[x]",
                                 "n[1,]",
                                 "n[[1]]",
                                 "n[1-2-3]",
                                 "n[0-99999999]",
                                 "n[99999999999]",
                                 "n[0-9999]m[0-9999]"}) {
    try {
      expand_nodelist("LIST", list);
      ADD_FAILURE() << list;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("LIST='" + list + "'"), std::string::npos) << error.what();
    }
  }
}

TEST(SlurmNodes, ExpandsCounts) {
  EXPECT_EQ(expand_counts("COUNTS", "4(x2),1"), (std::vector<int>{4, 4, 1}));
  EXPECT_EQ(expand_counts("COUNTS", "2"), (std::vector<int>{2}));
  EXPECT_EQ(expand_counts("COUNTS", "1,3(x1),2"), (std::vector<int>{1, 3, 2}));
  for (const std::string counts : {"", "x", "4(x", "4(x)", "4(2)", "4(x2),", "4(x99999999)", "-1", "(x2)"}) {
    EXPECT_THROW(expand_counts("COUNTS", counts), UsageError) << counts;
  }
}

}  // namespace
}  // namespace tutti::slurm_nodes_test
