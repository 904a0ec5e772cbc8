#pragma once
// How threads share cores.
#include <vector>

namespace tutti::plan {

/// Distributes `cores` over threads as a fair scheduler does. `demands`: the fraction of a core that each thread can
/// use. A thread gets its demand, or as much as every other thread that gets less than its demand.
std::vector<double> fair_shares(double cores, const std::vector<double>& demands);

}  // namespace tutti::plan
