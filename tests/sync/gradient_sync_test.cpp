// Ranks: 4 processes on 2 nodes.
#include "sync/gradient_sync.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace tutti::test::gradient_sync_test {
namespace {

// Backends count the sums that are complete, so no sum may complete before an earlier one.
const RankProgram waits_for_the_second_bucket("gradient_sync_waits_for_the_second_bucket", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "hierarchical"});
  constexpr std::int64_t elements = 10'000;
  const at::Tensor memory = comm::GradientCommunicator(communicator).allocate(2 * elements * 4).view(at::kFloat);
  const auto first = memory.narrow(0, 0, elements);
  const auto second = memory.narrow(0, elements, elements);
  for (int repeat = 0; repeat < 5; ++repeat) {
    first.fill_(communicator.rank());
    second.fill_(10 * communicator.rank());
    sync::GradientSync sync(communicator, {.has_gradients = 1, .weighting = Weighting::plain});
    for (const at::Tensor& bucket : {first, second}) sync.start_bucket_all_reduce(bucket);
    sync.wait_for_bucket(1);
    EXPECT_TRUE(second.eq(15).all().item<bool>());
    EXPECT_TRUE(first.eq(1.5).all().item<bool>());
    sync.close({}, {true, true});
    sync.wait();
  }
});
TEST(GradientSync, ABucketIsCompleteWhenAllEarlierOnesAre) {
  expect_success(run_processes(waits_for_the_second_bucket, 4, {.num_nodes = 2}));
}

}  // namespace
}  // namespace tutti::test::gradient_sync_test
