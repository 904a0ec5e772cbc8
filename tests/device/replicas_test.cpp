// Ranks: 2 as threads, each with a simulated device. Parameters on a device are compared late, and without a wait.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "support/training.h"
#include "sync/device_samples.h"
#include "tutti/tutti.h"

namespace tutti::device_replicas_test {
namespace {

namespace simulated = test::simulated;
using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;

/// A prepared model on this rank's device.
struct Training {
  Training(const Communicator& communicator, at::Device on, bool check_replicas = true)
      : device(on), accelerator({.check_replicas = check_replicas, .communicator = communicator}), net(test::Mlp()) {
    net->second->bias.set_requires_grad(false);
    net->to(device);
    auto [model, prepared] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
    optimizer.emplace(prepared);
    batch = test::batch_of(accelerator.rank()).input.to(device);
  }
  void step() {
    const auto scope = accelerator.accumulate(net);
    accelerator.backward(net->forward(batch).square().mean());
    optimizer->step();
    optimizer->zero_grad();
  }
  /// The message of the error of one of the next steps.
  std::string error_within(int steps) {
    try {
      for (int i = 0; i < steps; ++i) {
        step();
        // Several steps may be queued before the device has run one.
        simulated::wait_for_device(device.index(), "test");
      }
    } catch (const MismatchError& error) {
      return error.what();
    }
    return "";
  }

  at::Device device;
  Accelerator accelerator;
  test::Mlp net;
  std::optional<Optimizer> optimizer;
  at::Tensor batch;
};

void add(const at::Tensor& parameter, double value) {
  const at::NoGradGuard no_grad;
  at::Tensor(parameter).add_(value);
}

TEST(DeviceReplicas, AChangeOnOneRankNamesTheParameter) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device);
    EXPECT_EQ(training.error_within(4), "");
    if (communicator.rank() == 1) add(training.net->first->weight, 1e-3);
    const std::string error = training.error_within(4);
    EXPECT_NE(error.find("parameter 'first.weight' of rank 1 differs from that of rank 0, as it was some steps ago"),
              std::string::npos)
        << error;
  });
}

TEST(DeviceReplicas, AChangeOfAFrozenParameterIsFound) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device);
    EXPECT_EQ(training.error_within(1), "");
    if (communicator.rank() == 1) add(training.net->second->bias, 1e-3);
    const std::string error = training.error_within(4);
    EXPECT_NE(error.find("'second.bias' of rank 1"), std::string::npos) << error;
  });
}

// Each sample reads other elements.
TEST(DeviceReplicas, AChangeOfOneElementIsFound) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device);
    const at::Tensor weight = training.net->first->weight;
    if (communicator.rank() == 1) add(weight.view({-1})[weight.numel() / 3], 1);
    const auto samples = static_cast<int>((weight.numel() + 15) / 16);
    EXPECT_NE(training.error_within(samples + 3).find("'first.weight'"), std::string::npos);
  });
}

TEST(DeviceReplicas, ACorrectedDifferenceIsReportedOnce) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device);
    if (communicator.rank() == 1) add(training.net->first->weight, 0.5);
    EXPECT_NE(training.error_within(5), "");
    replicate_module(*training.net, communicator);
    training.optimizer->zero_grad();
    EXPECT_EQ(training.error_within(6), "");
  });
}

TEST(DeviceReplicas, ComparingDoesNotWaitForTheDevice) {
  const SlowKernels slow(100);
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device);
    training.step();
    EXPECT_EQ(waits_during(communicator,
                           [&] {
                             for (int i = 0; i < 10; ++i) training.step();
                           }),
              0);
  });
}

// One rank's device is behind: ranks compare the samples that all of them have.
TEST(DeviceReplicas, ASlowDeviceOfOneRankIsNoDifference) {
  const SlowKernels slow(100);
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device);
    for (int i = 0; i < 12; ++i) {
      if (communicator.rank() == 0) simulated::wait_for_device(device.index(), "test");
      ASSERT_NO_THROW(training.step());
    }
  });
}

TEST(DeviceReplicas, ReplicasMayDifferWithoutTheCheck) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Training training(communicator, device, /*check_replicas=*/false);
    if (communicator.rank() == 1) add(training.net->first->weight, 1);
    EXPECT_EQ(training.error_within(4), "");
  });
}

class DeviceSamplesOfOneRank : public testing::Test {
 protected:
  static at::Tensor on_device(const at::Tensor& tensor) { return tensor.to(at::Device(simulated::type, 0)); }
  /// The hashes of the next sample.
  static std::vector<std::uint64_t> next(sync::DeviceSamples& samples) {
    samples.take();
    simulated::wait_for_device(0, "test");
    samples.agree(samples.newest_arrived());
    return samples.hashes();
  }
};

TEST_F(DeviceSamplesOfOneRank, HashTheBitsOfEveryDtype) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble,
                           at::kBool, at::kByte, at::kLong}) {
    const at::Tensor base = at::arange(0, 24, at::kFloat).remainder(2).to(dtype).view({4, 6});
    const std::vector<NamedParameter> same{{.name = "a", .tensor = on_device(base)},
                                           {.name = "b", .tensor = on_device(base)},
                                           {.name = "c", .tensor = on_device(base.logical_not().to(dtype))},
                                           {.name = "cpu", .tensor = base}};
    sync::DeviceSamples samples(same);
    const auto hashes = next(samples);
    EXPECT_EQ(hashes[0], hashes[1]) << dtype;
    EXPECT_NE(hashes[0], hashes[2]) << dtype;
    EXPECT_EQ(hashes[3], 0) << dtype;
  }
}

TEST_F(DeviceSamplesOfOneRank, ReadEveryElementInTurn) {
  for (const std::int64_t elements : {1, 16, 17, 100, 1000}) {
    const at::Tensor plain = at::zeros({elements});
    for (const std::int64_t changed : {std::int64_t{0}, elements / 2, elements - 1}) {
      at::Tensor other = plain.clone();
      other[changed] = 1;
      const std::vector<NamedParameter> both{{.name = "a", .tensor = on_device(plain)},
                                             {.name = "b", .tensor = on_device(other)}};
      sync::DeviceSamples samples(both);
      bool found = false;
      for (std::int64_t i = 0; i < (elements + 15) / 16 && !found; ++i) {
        const auto hashes = next(samples);
        found = hashes[0] != hashes[1];
      }
      EXPECT_TRUE(found) << changed << " of " << elements;
    }
  }
}

TEST_F(DeviceSamplesOfOneRank, OfACpuModelHaveArrived) {
  const std::vector<NamedParameter> on_cpu{{.name = "a", .tensor = at::ones({3})}};
  sync::DeviceSamples samples(on_cpu);
  samples.take();
  EXPECT_EQ(samples.newest_arrived(), sync::DeviceSamples::all_arrived);
  samples.agree(sync::DeviceSamples::all_arrived);
  EXPECT_TRUE(samples.hashes().empty());
}

TEST_F(DeviceSamplesOfOneRank, WaitForTheOtherRanks) {
  const std::vector<NamedParameter> parameters{{.name = "a", .tensor = on_device(at::ones({3}))}};
  sync::DeviceSamples samples(parameters);
  for (int i = 0; i < 10; ++i) samples.take();
  simulated::wait_for_device(0, "test");
  EXPECT_EQ(samples.newest_arrived(), 4) << "no more samples than that wait";
  samples.agree(1);
  EXPECT_EQ(samples.newest_arrived(), 4);
  EXPECT_FALSE(samples.hashes().empty());
  samples.agree(0);
  samples.take();
  simulated::wait_for_device(0, "test");
  EXPECT_EQ(samples.newest_arrived(), 5);
}

}  // namespace
}  // namespace tutti::device_replicas_test
