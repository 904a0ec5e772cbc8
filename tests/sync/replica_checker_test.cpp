#include "sync/replica_checker.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "sync/sampled_hash.h"

namespace tutti::replica_checker_test {
namespace {

using sync::ParameterSet;
using sync::ReplicaChecker;

/// A frozen, a sparse and two dense parameters.
ParameterSet parameters() {
  const auto trained = [](std::int64_t size) { return at::zeros({size}).requires_grad_(); };
  return ParameterSet({{.name = "frozen", .tensor = at::zeros({2})},
                       {.name = "rows", .tensor = trained(4), .sparse = true},
                       {.name = "weight", .tensor = trained(3)},
                       {.name = "bias", .tensor = trained(1)}});
}

void write(const at::Tensor& parameter, double value) {
  const at::NoGradGuard no_grad;
  at::Tensor(parameter).fill_(value);
}

TEST(ParameterSet, PutsParametersWithASlotFirst) {
  const ParameterSet set = parameters();
  ASSERT_EQ(set.trained.size(), 3);
  EXPECT_EQ(set.slots, 2);
  EXPECT_EQ(set.trained[0].name, "weight");
  EXPECT_EQ(set.trained[2].name, "rows");
  EXPECT_EQ(set.frozen.front().name, "frozen");
}

TEST(ReplicaChecker, DetectsFreezingAndUnfreezing) {
  const ParameterSet set = parameters();
  const ReplicaChecker checker(set, true);
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(checker.check_trained(i));
  EXPECT_NO_THROW(checker.check_frozen());
  at::Tensor(set.trained[1].tensor).requires_grad_(false);
  at::Tensor(set.frozen[0].tensor).requires_grad_();
  EXPECT_NO_THROW(checker.check_trained(0));
  EXPECT_THROW(checker.check_trained(1), UsageError);
  EXPECT_THROW(checker.check_frozen(), UsageError);
}

TEST(ReplicaChecker, AllowsAChangeOfValuesBetweenWindowsOnly) {
  const ParameterSet set = parameters();
  ReplicaChecker checker(set, true);
  EXPECT_NO_THROW(checker.check_unchanged());
  checker.begin_pass(false);
  EXPECT_NO_THROW(checker.begin_pass(true));
  write(set.trained[0].tensor, 1);
  EXPECT_THROW(checker.check_unchanged(), UsageError);
  EXPECT_THROW(checker.begin_pass(true), UsageError);
  EXPECT_NO_THROW(checker.begin_pass(false));
  write(set.trained[2].tensor, 1);
  checker.forget_values();
  EXPECT_NO_THROW(checker.begin_pass(true));
}

TEST(ReplicaChecker, HashesTrainedParametersIfItComparesValues) {
  const ParameterSet set = parameters();
  ReplicaChecker checker(set, true);
  const std::uint64_t before = checker.combined_hash();
  write(set.frozen[0].tensor, 1);
  EXPECT_EQ(checker.combined_hash(), before);
  write(set.trained[1].tensor, 1);
  EXPECT_NE(checker.combined_hash(), before);
  checker.set_compares_values(false);
  EXPECT_EQ(checker.combined_hash(), 0);
  checker.begin_pass(false);
  write(set.trained[1].tensor, 2);
  EXPECT_NO_THROW(checker.begin_pass(true));
}

TEST(SampledHash, SeesEveryElementOfASmallTensor) {
  const at::Tensor tensor = at::zeros({16});
  const std::uint64_t before = sync::sampled_hash(tensor);
  for (int i = 0; i < 16; ++i) {
    write(tensor[i], 1);
    EXPECT_NE(sync::sampled_hash(tensor), before) << i;
    write(tensor[i], 0);
  }
  EXPECT_EQ(sync::sampled_hash(tensor), before);
}

}  // namespace
}  // namespace tutti::replica_checker_test
