// Ranks: 2 as threads, each with a simulated device. Where a program trains: streams of its own, autocast.
#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <vector>

#include "device/training_loops.h"
#include "support/difference.h"
#include "support/simulated_device/ranks.h"
#include "tutti/detail/amp/autocast.h"

namespace tutti::device_training_test {
namespace {

using test::Extra;
using test::Loop;
namespace simulated = test::simulated;

constexpr int steps = 4;

using Results = std::array<std::vector<at::Tensor>, 2>;

/// The results of ranks that train in a stream of their own from step `first_step` on; -1: in the default stream.
Results train(Loop loop, Extra extra, int first_step) {
  Results results;
  const simulated::SlowKernels slow(50);
  test::run_simulated_ranks({.size = 2}, [&](const Communicator& communicator, at::Device device) {
    std::optional<c10::StreamGuard> guard;
    const auto on_step = [&](int step) {
      // The state of the optimizer may be the default stream's: it must not be freed before the last step has run.
      if (step == first_step || step == steps) simulated::wait_for_device(device.index(), "test");
      if (step == first_step) guard.emplace(simulated::pool_stream(device.index()));
    };
    results[static_cast<std::size_t>(communicator.rank())] =
        test::train(communicator, device, {.loop = loop, .extra = extra, .steps = steps, .on_step = on_step});
  });
  return results;
}

void expect_equal(const Results& actual, const Results& expected) {
  for (std::size_t rank = 0; rank < actual.size(); ++rank) {
    EXPECT_EQ(test::largest_difference(actual[rank], expected[rank]), 0) << "rank " << rank;
  }
}

TEST(DeviceTraining, RanksEndAlike) {
  const Results results = train(Loop::accumulate, Extra::none, -1);
  EXPECT_EQ(test::largest_difference(results[0], results[1]), 0);
}

TEST(DeviceTraining, AStreamOfTheProgramChangesNoBit) {
  for (const Loop loop : {Loop::accumulate, Loop::every_pass}) {
    for (const Extra extra : {Extra::none, Extra::clip_norm}) {
      SCOPED_TRACE(test::name_of(loop) + ", " + test::name_of(extra));
      expect_equal(train(loop, extra, 0), train(loop, extra, -1));
    }
  }
}

TEST(DeviceTraining, TheProgramMayChangeItsStreamBetweenSteps) {
  expect_equal(train(Loop::accumulate, Extra::none, 2), train(Loop::accumulate, Extra::none, -1));
}

TEST(DeviceTraining, AutocastComputesInBfloat16OnAnyDevice) {
  const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(at::Device(simulated::type, 0));
  const AutocastScope scope(Precision::bf16, simulated::type);
  EXPECT_EQ(at::linear(at::ones({2, 3}, floats), at::ones({4, 3}, floats)).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace tutti::device_training_test
