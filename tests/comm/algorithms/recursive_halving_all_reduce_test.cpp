// Ranks: 2 to 13 as threads. Recursive halving gives the same bits as the direct all-reduce.
#include "comm/algorithms/recursive_halving_all_reduce.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/algorithms/direct_all_reduce.h"
#include "support/tcp_transports.h"

namespace tutti::test::recursive_halving_all_reduce_test {
namespace {

using namespace tutti::comm;

/// The result of each rank after an all-reduce of type Sum over `inputs`, one per rank.
template <typename Sum>
std::vector<at::Tensor> sums_of(const std::vector<at::Tensor>& inputs, ReduceOp op, double scale) {
  const int size = static_cast<int>(inputs.size());
  const auto transports = make_tcp_transports(size);
  std::vector<at::Tensor> results;
  for (const at::Tensor& input : inputs) results.push_back(input.clone());
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        BufferPool pool;
        const Operation operation{.number = 1, .op_name = "sum", .name = "", .timeout = std::chrono::seconds(20)};
        Sum sum(transports[rank], pool, operation, results[rank], make_reduction(op, size));
        sum.finish_reduce_scatter(scale);
        sum.wait();
      });
    }
  }
  return results;
}

std::vector<at::Tensor> inputs_of(int size, std::int64_t elements, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) {
    if (at::isFloatingType(dtype)) {
      const at::Tensor values = at::rand({elements}, at::kDouble).sub_(0.5);
      // Zeros of both signs: the sign of a minimum depends on the order of its operands.
      inputs.push_back(values.mul_(values.abs().gt(0.1)).to(dtype));
    } else {
      inputs.push_back(at::randint(-50, 50, {elements}, dtype));
    }
  }
  return inputs;
}

void expect_equal_bits(int size, std::int64_t elements, at::ScalarType dtype, ReduceOp op, double scale = 1) {
  const auto inputs = inputs_of(size, elements, dtype);
  const auto expected = sums_of<DirectAllReduce>(inputs, op, scale);
  const auto found = sums_of<RecursiveHalvingAllReduce>(inputs, op, scale);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(at::equal(found[rank].view(at::kByte), expected[rank].view(at::kByte)))
        << "rank " << rank << " of " << size << ", " << elements << " of " << dtype;
  }
}

TEST(RecursiveHalvingAllReduce, EqualsTheDirectSumBitForBitForAnyNumberOfRanks) {
  for (int size = 2; size <= 13; ++size) expect_equal_bits(size, 1000 + size, at::kFloat, ReduceOp::sum, 1.0 / 3);
}

TEST(RecursiveHalvingAllReduce, TakesEveryDtypeAndOperation) {
  constexpr int size = 11;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      expect_equal_bits(size, 300, dtype, op);
    }
  }
  for (const auto op : {ReduceOp::sum, ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
    expect_equal_bits(size, 300, at::kLong, op);
  }
}

// Fewer cache lines than shards, and more bytes than a chunk.
TEST(RecursiveHalvingAllReduce, TakesOneElementAndMany) {
  for (const int size : {5, 8, 12}) {
    expect_equal_bits(size, 1, at::kFloat, ReduceOp::sum);
    expect_equal_bits(size, 33, at::kFloat, ReduceOp::sum);
  }
  expect_equal_bits(3, (std::int64_t{3} << 20) + 7, at::kFloat, ReduceOp::sum);
}

}  // namespace
}  // namespace tutti::test::recursive_halving_all_reduce_test
