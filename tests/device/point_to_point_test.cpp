// Ranks: 2 and 3 as threads, each with a simulated device. Messages of device tensors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "tutti/core/error.h"

namespace tutti::device_point_to_point_test {
namespace {

namespace simulated = test::simulated;
using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;

constexpr std::int64_t elements = 20000;

TEST(DeviceMessages, ArriveOnTheDeviceAndTheProgramDoesNotWait) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const auto options = at::TensorOptions(device);
    const int peer = 1 - communicator.rank();
    const at::Tensor sent = at::arange(elements, at::kFloat).to(device);
    const at::Tensor received = at::zeros({elements}, options);
    at::Tensor result;
    const SlowKernels slow(2000);
    const auto waits = waits_during(communicator, [&] {
      const at::Tensor message = sent.mul(2 + communicator.rank());
      const Work works[] = {communicator.receive(received, peer), communicator.send(message, peer)};
      for (const Work& work : works) work.wait();
      result = received.add(1);
    });
    EXPECT_EQ(waits, 0);
    EXPECT_TRUE(at::equal(result.cpu(), at::arange(elements, at::kFloat).mul(2 + peer).add(1)));
    communicator.barrier().wait();
  });
}

// A message of the host does not overtake one whose bytes are still on the device. Messages with strides, to a tensor
// with strides.
TEST(DeviceMessages, KeepTheOrderOfSends) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    constexpr int count = 6;
    if (communicator.rank() == 0) {
      const SlowKernels slow(3000);
      std::vector<Work> works;
      for (int i = 0; i < count; ++i) {
        const at::Tensor value =
            at::full({10, 2}, 1.0 * i, i % 2 == 0 ? at::TensorOptions(device) : at::TensorOptions());
        works.push_back(communicator.send(value.select(1, 0), 1));
      }
      for (const Work& work : works) work.wait();
    } else {
      const at::Tensor all = at::zeros({10, count}, at::TensorOptions(device));
      for (int i = 0; i < count; ++i) communicator.receive(all.select(1, i), 0).wait();
      EXPECT_TRUE(at::equal(all.cpu(), at::arange(count, at::kFloat).expand({10, count})));
    }
  });
}

TEST(DeviceMessages, ArriveFromAnySource) {
  run_simulated_ranks({.size = 3, .c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const auto options = at::TensorOptions(device);
    if (communicator.rank() != 0) return communicator.send(at::full({5}, 1.0 * communicator.rank(), options), 0).wait();
    for (int i = 0; i < 2; ++i) {
      std::atomic<int> source = -1;
      const at::Tensor received = at::zeros({5}, options);
      communicator.receive_from_any(received, 0, [&](int rank) { source = rank; }).wait();
      EXPECT_EQ(received.sum().item<double>(), 5.0 * source);
    }
  });
}

// A rank sends before it enters the collective that the other rank waits in.
TEST(DeviceMessages, DoNotWaitForCollectives) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor x = at::ones({elements}, at::TensorOptions(device));
    const at::Tensor message = at::full({elements}, 5.0, at::TensorOptions(device));
    if (communicator.rank() == 0) {
      const Work sum = communicator.all_reduce(x);
      communicator.send(message, 1).wait();
      sum.wait();
    } else {
      message.zero_();
      communicator.receive(message, 0).wait();
      communicator.all_reduce(x).wait();
      EXPECT_EQ(message.sum().item<double>(), 5.0 * elements);
    }
    EXPECT_EQ(x.sum().item<double>(), 2.0 * elements);
  });
}

TEST(DeviceMessages, FailAsOnTheHost) {
  run_simulated_ranks({.c10d_backend = false, .timeout = std::chrono::seconds(1)},
                      [](const Communicator& communicator, at::Device device) {
                        const auto options = at::TensorOptions(device);
                        const at::Tensor tensor = at::full({4}, 3.0, options);
                        if (communicator.rank() == 0) {
                          communicator.send(tensor, 1, 7).wait();
                          communicator.barrier({.timeout = std::chrono::seconds(30)}).wait();
                          return;
                        }
                        EXPECT_THROW(communicator.receive(at::empty({5}, options), 0, 7).wait(), MismatchError);
                        try {
                          communicator.receive(tensor, 0).wait();
                          ADD_FAILURE() << "nothing was thrown";
                        } catch (const TimeoutError& error) {
                          EXPECT_EQ(error.ranks(), std::vector<int>{0}) << error.what();
                        }
                        EXPECT_EQ(tensor.sum().item<double>(), 12) << "a failed receive leaves the tensor as it is";
                        communicator.barrier({.timeout = std::chrono::seconds(30)}).wait();
                      });
}

TEST(DeviceMessages, AStoppedDeviceIsNamed) {
  std::promise<void> stopped;
  const std::shared_future<void> resumes = stopped.get_future().share();
  run_simulated_ranks({.c10d_backend = false}, [&](const Communicator& communicator, at::Device device) {
    if (communicator.rank() == 1) return;
    const at::Tensor tensor = at::ones({4}, at::TensorOptions(device));
    simulated::launch(simulated::current_stream(device.index()), [resumes] { resumes.wait(); });
    try {
      communicator.send(tensor, 1, 0, {.timeout = std::chrono::seconds(1)}).wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(std::string(error.what()),
                "send (tag 0): device " + device.str() +
                    " of rank 0 did not complete the work queued before the call within 1 s");
    }
    stopped.set_value();
    simulated::wait_for_device(device.index(), "the end of the test");
  });
}

}  // namespace
}  // namespace tutti::device_point_to_point_test
