#pragma once
// States to save, and a comparison of every bit.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tutti/checkpoint/checkpoint.h"

namespace tutti::test {

testing::AssertionResult same(const at::Tensor& a, const at::Tensor& b);
testing::AssertionResult same(const StateDict& a, const StateDict& b);
testing::AssertionResult same(const std::map<std::string, StateDict>& a, const std::map<std::string, StateDict>& b);

/// Every type of value, with the special values of each.
StateDict every_kind_of_value();

/// A small checkpoint: two shared parts and the state of this rank.
CheckpointContent small_content(std::int64_t step, int rank);

}  // namespace tutti::test
