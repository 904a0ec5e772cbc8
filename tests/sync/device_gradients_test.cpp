// Ranks: 2 and 3 as threads. Gradients on a device where a c10d backend sums them.
#include <gtest/gtest.h>

#include <limits>

#include "support/device_ranks.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti::test::device_gradients_test {
namespace {

TEST(DeviceGradients, AreSynchronizedThroughTheBackend) {
  for (const int size : {2, 3}) {
    run_device_ranks(size, [size](const Communicator& communicator, const BackendLog& log) {
      ToyModel toy(communicator);
      EXPECT_EQ(log.groups.size(), 1U);
      const double mean = (size - 1) / 2.0;
      for (int step = 0; step < 3; ++step) {
        const int before = log.sums;
        toy.pass({.a = communicator.rank()});
        EXPECT_GT(log.sums, before);
        toy.expect_gradient(toy.a, static_cast<float>(mean));
        toy.optimizer.step();
        toy.optimizer.zero_grad();
      }
      {
        const auto scope = toy.accumulate(1, false);
        toy.pass({.a = 4});
      }
      {
        const auto scope = toy.accumulate(3, true);
        toy.pass({.b = 8});
      }
      toy.expect_gradient(toy.a, 1);
      toy.expect_gradient(toy.b, 2);
    });
  }
}

TEST(DeviceGradients, AnOverflowIsSeenOnAllRanks) {
  run_device_ranks(2, [](const Communicator& communicator, const BackendLog&) {
    ToyModel toy(communicator, {.detect_overflow = true});
    toy.pass({.a = communicator.rank() == 0 ? std::numeric_limits<double>::infinity() : 1});
    EXPECT_TRUE(toy.reducer->overflowed());
    toy.optimizer.zero_grad();
    toy.pass({.a = 1});
    EXPECT_FALSE(toy.reducer->overflowed());
  });
}

TEST(DeviceGradients, AParameterOnAnUnsupportedDeviceIsNamed) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const at::Tensor meta = at::empty({2}, at::kMeta).requires_grad_();
    try {
      Reducer reducer({{.name = "w", .tensor = meta}}, communicator.duplicate("toy"));
      FAIL() << "no error";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("parameter 'w' is on meta"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace tutti::test::device_gradients_test
