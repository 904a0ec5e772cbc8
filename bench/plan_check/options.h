#pragma once
// The options of `tutti bench plan`.
#include <string>
#include <vector>

#include "command/arguments.h"
#include "example.h"
#include "plan/description.h"

namespace tutti::bench {

struct PlanCheckOptions : CommonOptions {
  std::vector<int> ranks{2, 4, 8};  ///< on one node
  std::vector<int> nodes{2, 4};
  std::vector<int> ranks_per_node{1, 2};  ///< on several nodes
  std::vector<std::string> rates{"1gbit", "100mbit"};
  std::vector<std::string> exchanges{"once", "every"};
  int accumulation = 2;
  int steps = 8;
  int repeats = 3;
  plan::Example example{};
};

plan::Exchange exchange_named(const std::string& name);

}  // namespace tutti::bench
