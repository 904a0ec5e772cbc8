#include "sync/replica_checker.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

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
  checker.begin_pass(false);
  EXPECT_NO_THROW(checker.begin_pass(true));
  write(set.trained[0].tensor, 1);
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

// Weights that forward normalizes change between passes, on all ranks alike. An optimizer changes every parameter that
// has a gradient.
TEST(ReplicaChecker, AllowsForwardToWriteSomeOfTheParametersWithGradients) {
  const ParameterSet set = parameters();
  for (const NamedParameter& parameter : set.trained) {
    parameter.tensor.mutable_grad() = at::ones(parameter.tensor.sizes());
  }
  ReplicaChecker checker(set, true);
  checker.begin_pass(false);
  write(set.trained[0].tensor, 1);
  EXPECT_NO_THROW(checker.begin_pass(true));
  for (const NamedParameter& parameter : set.trained) write(parameter.tensor, 2);
  EXPECT_THROW(checker.begin_pass(true), UsageError);
}

// Every combined hash reads other elements, so ranks find any difference within the stated number of synchronizations.
TEST(ReplicaChecker, CombinedHashesReadEveryElementInTurn) {
  constexpr std::int64_t elements = 5'000;
  const auto weights = [] {
    return ParameterSet({{.name = "weight", .tensor = at::zeros({elements}).requires_grad_()}});
  };
  const ParameterSet first = weights();
  const ParameterSet second = weights();
  for (const std::int64_t element : {0, 1, 2'499, 4'999}) {
    ReplicaChecker one(first, true);
    ReplicaChecker other(second, true);
    write(second.trained[0].tensor[element], 1);
    std::int64_t rounds = 1;
    while (rounds <= elements && one.combined_hash() == other.combined_hash()) ++rounds;
    EXPECT_LE(rounds, sync::rounds_to_read_all(elements)) << element;
    write(second.trained[0].tensor[element], 0);
  }
}

TEST(SampledHash, ReadsEveryElementInTheStatedNumberOfRounds) {
  EXPECT_EQ(sync::rounds_to_read_all(0), 1);
  for (const std::int64_t elements : {1, 16, 17, 1'000, 16'001, 40'000}) {
    const std::int64_t rounds = sync::rounds_to_read_all(elements);
    EXPECT_LE(rounds, std::min<std::int64_t>(1'000, (elements + 15) / 16)) << elements;
    const at::Tensor tensor = at::zeros({elements});
    std::vector<std::uint64_t> before;
    for (std::int64_t round = 0; round < rounds; ++round) before.push_back(sync::sampled_hash(tensor, round));
    for (std::int64_t element = 0; element < elements; element += std::max<std::int64_t>(1, elements / 37)) {
      write(tensor[element], 1);
      std::int64_t found = 0;
      for (std::int64_t round = 0; round < rounds; ++round) {
        if (sync::sampled_hash(tensor, round) != before[static_cast<std::size_t>(round)]) ++found;
      }
      EXPECT_GE(found, 1) << element << " of " << elements;
      write(tensor[element], 0);
    }
  }
}

// A hash is one of the values: of all bytes of an element, in any layout, and of conj() as of its resolve_conj().
TEST(SampledHash, IsOneOfTheValues) {
  const at::Tensor wide = at::zeros({4}, at::kComplexDouble);
  const std::uint64_t before = sync::sampled_hash(wide);
  at::imag(wide)[2].fill_(1);
  EXPECT_NE(sync::sampled_hash(wide), before);
  EXPECT_EQ(sync::sampled_hash(wide.conj()), sync::sampled_hash(wide.conj().resolve_conj()));
  EXPECT_NE(sync::sampled_hash(wide.conj()), sync::sampled_hash(wide));
  const at::Tensor negated = at::_neg_view(at::arange(4.0));
  EXPECT_NE(sync::sampled_hash(negated), sync::sampled_hash(at::arange(4.0)));
  EXPECT_EQ(sync::sampled_hash(negated), sync::sampled_hash(negated.resolve_neg()));

  const at::Tensor with_gaps = at::zeros({4, 6}).slice(1, 0, 6, 2);
  const std::uint64_t of_zeros = sync::sampled_hash(with_gaps);
  for (std::int64_t i = 0; i < with_gaps.numel(); ++i) {
    write(with_gaps[i / 3][i % 3], 1);
    EXPECT_NE(sync::sampled_hash(with_gaps), of_zeros) << i;
    write(with_gaps[i / 3][i % 3], 0);
  }
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
