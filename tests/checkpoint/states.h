#pragma once
// States to save, and whether what came back is the same to the bit.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tutti/checkpoint/checkpoint.h"

namespace tutti::test {

testing::AssertionResult same(const at::Tensor& a, const at::Tensor& b);
testing::AssertionResult same(const StateDict& a, const StateDict& b);
testing::AssertionResult same(const std::map<std::string, StateDict>& a, const std::map<std::string, StateDict>& b);

/// Every kind of value, with the awkward ones of each.
StateDict every_kind_of_value();

/// Small: two shared parts, and something of this rank's own.
CheckpointContent small_content(std::int64_t step, int rank);

}  // namespace tutti::test
