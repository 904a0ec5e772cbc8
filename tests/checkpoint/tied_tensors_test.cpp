// Tensors that share memory. No ranks.
#include "checkpoint/tied_tensors.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace tutti::checkpoint::tied_tensors_test {
namespace {

TEST(TiedTensors, AreOneTensorIfMemoryAndOrderAreTheSame) {
  const at::Tensor square = at::rand({3, 3});
  EXPECT_TRUE(same_tensor(square, square.detach()));
  EXPECT_FALSE(same_tensor(square, square.t())) << "the same memory and shape, but other values";
  EXPECT_FALSE(same_tensor(square, square[0]));
  EXPECT_FALSE(same_tensor(square, square.clone()));
  const at::Tensor complex = at::rand({3}, at::kComplexFloat);
  EXPECT_FALSE(same_tensor(complex, complex.conj()));
}

TEST(TiedTensors, ATransposedViewKeepsItsOwnName) {
  const at::Tensor square = at::rand({3, 3});
  const auto tied = tied_names({{"a", square}, {"b", square.t()}, {"c", square.detach()}});
  EXPECT_EQ(tied, (std::map<std::string, std::string>{{"c", "a"}}));
}

}  // namespace
}  // namespace tutti::checkpoint::tied_tensors_test
