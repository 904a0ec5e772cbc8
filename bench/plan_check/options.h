#pragma once
// The options of `tutti bench plan`.
#include <optional>
#include <string>
#include <vector>

#include "example.h"
#include "plan/description.h"

namespace tutti::bench {

struct PlanCheckOptions {
  std::vector<int> ranks{2, 4, 8};  ///< on one node
  std::vector<int> nodes{2, 4};
  std::vector<int> ranks_per_node{1, 2};  ///< on several nodes
  std::vector<std::string> rates{"1gbit", "100mbit"};
  std::vector<std::string> exchanges{"once", "every"};
  int accumulation = 2;
  int steps = 8;
  int repeats = 3;
  plan::Example example{};
  std::string json;     ///< file for the rows; empty: none
  std::string results;  ///< file in which rank 0 writes its times for the parent process
};

/// Returns nullopt after --help. `under_launcher`: this process is a rank, so options about ranks are refused. Throws
/// UsageError.
std::optional<PlanCheckOptions> parse_plan_check_options(const std::vector<std::string>& words, bool under_launcher);

plan::Exchange exchange_named(const std::string& name);

/// Converts a rate such as 100mbit to Gbit/s. Throws UsageError.
double gbit_of(const std::string& rate);

}  // namespace tutti::bench
