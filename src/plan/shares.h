#pragma once
// How threads share cores.
#include <vector>

namespace tutti::plan {

/// What each of several threads gets of `cores`, when it could use as much as it demands, a core at most: all that it
/// demands where that is little, and as much as the others that get less than they demand. As a fair scheduler does it.
std::vector<double> fair_shares(double cores, const std::vector<double>& demands);

}  // namespace tutti::plan
