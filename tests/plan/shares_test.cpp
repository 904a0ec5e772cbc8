#include "plan/shares.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace tutti::plan::shares_test {
namespace {

using Shares = std::vector<double>;

TEST(FairShares, MeetEveryDemandIfThereAreEnoughCores) {
  EXPECT_EQ(fair_shares(2, {1, 0.25, 0.5}), (Shares{1, 0.25, 0.5}));
}

TEST(FairShares, AreEqualIfAllDemandMore) {
  EXPECT_EQ(fair_shares(1, {1, 1}), (Shares{0.5, 0.5}));
  EXPECT_EQ(fair_shares(0.5, {1, 0, 1}), (Shares{0.25, 0, 0.25}));
}

TEST(FairShares, MeetSmallDemandsAndShareTheRestEqually) {
  EXPECT_EQ(fair_shares(1, {1, 0.25, 1}), (Shares{0.375, 0.25, 0.375}));
}

TEST(FairShares, LeaveNoCoreIdleThatAThreadDemands) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> part(0, 1);
  for (int trial = 0; trial < 1000; ++trial) {
    const Shares demands{part(random), part(random), part(random)};
    const double cores = 3 * part(random);
    const Shares shares = fair_shares(cores, demands);
    const double demanded = std::accumulate(demands.begin(), demands.end(), 0.0);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), std::min(cores, demanded), 1e-12);
    for (std::size_t i = 0; i < demands.size(); ++i) EXPECT_LE(shares[i], demands[i]);
  }
}

}  // namespace
}  // namespace tutti::plan::shares_test
