#pragma once
// What `tutti plan` was asked for.
#include <optional>
#include <string>
#include <vector>

#include "example.h"
#include "plan/description.h"

namespace tutti::plan {

struct PlanOptions {
  std::vector<int> nodes{1, 2, 4, 8, 16, 64};
  int ranks_per_node = 1;
  double cores = 1;
  std::vector<Link> links{};
  // The model: all of its times, and its gradients in one of two ways; else the example is measured.
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double gradient_bytes = 0;
  std::string model{};  ///< a safetensors file
  int accumulation = 1;
  Exchange exchange = Exchange::once_a_step;
  bool measure = false;  ///< what the machine can do
  int steps = 20;        ///< of the example, where it is measured
  Example example{};
  std::string json{};  ///< file for the rows; none when empty
  // A rank's, which measures.
  std::string part{};     ///< "machine" or "work"
  std::string results{};  ///< where rank 0 leaves what was found

  bool measures_example() const { return gradient_bytes == 0 && model.empty(); }
};

/// nullopt when help was asked for (and printed). `under_launcher`: this process is a rank already, and measures a
/// part. Throws UsageError.
std::optional<PlanOptions> parse_plan_options(int argc, char** argv, bool under_launcher);

}  // namespace tutti::plan
