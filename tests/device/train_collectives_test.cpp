// Ranks: 2 as threads, each with a simulated device. gather(), reduce() and the other collectives of a training loop on
// device tensors, over a c10d backend and staged.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "data/numbers.h"
#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "tutti/sync/all_gather_with_grad.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/collectives.h"

namespace tutti::device_train_collectives_test {
namespace {

using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;

void run_on_each_backend(const std::function<void(const Communicator&, at::Device)>& body) {
  run_simulated_ranks({}, body);
  run_simulated_ranks({.backend = "staged", .c10d_backend = false}, body);
  run_simulated_ranks({.backend = "shared_memory", .c10d_backend = false}, body);
}

at::Tensor values_of(int rank) {
  return at::arange(6000, at::kFloat).view({-1, 3}).mul(rank + 0.5F);
}

using Call = at::Tensor (*)(const Communicator& communicator, const at::Tensor& x);
const std::vector<std::pair<const char*, Call>> calls = {
    {"gather", [](const Communicator& communicator, const at::Tensor& x) { return gather(communicator, x); }},
    {"gather of a number",
     [](const Communicator& communicator, const at::Tensor& x) { return gather(communicator, x[0][1]); }},
    {"reduce", [](const Communicator& communicator,
                  const at::Tensor& x) { return reduce(communicator, x, ReduceOp::mean, 2.0); }},
    {"broadcast", [](const Communicator& communicator, const at::Tensor& x) { return broadcast(communicator, x, 1); }},
    {"pad_across_processes",
     [](const Communicator& communicator, const at::Tensor& x) {
       return pad_across_processes(communicator, x.slice(0, 0, 5 + communicator.rank()));
     }},
};

TEST(DeviceTrainCollectives, StayOnTheDeviceAndDoNotWaitForIt) {
  run_on_each_backend([](const Communicator& communicator, at::Device device) {
    for (const auto& [name, call] : calls) {
      const at::Tensor expected = call(communicator, values_of(communicator.rank()).mul(2));
      const at::Tensor input = values_of(communicator.rank()).to(device);
      at::Tensor result;
      communicator.all_reduce(at::ones({1}, at::TensorOptions(device))).wait();  // connects a c10d backend
      const SlowKernels slow(1000);
      const auto waits = waits_during(communicator, [&] { result = call(communicator, input.mul(2)); });
      EXPECT_EQ(waits, 0) << name;
      EXPECT_EQ(result.device(), device) << name;
      EXPECT_TRUE(at::equal(result.cpu(), expected)) << name;
      communicator.barrier().wait();
    }
  });
}

TEST(DeviceTrainCollectives, GatherForMetricsDropsRepeatedSamples) {
  run_on_each_backend([](const Communicator& communicator, at::Device device) {
    communicator.all_reduce(at::ones({1}, at::TensorOptions(device))).wait();  // connects a c10d backend
    Accelerator accelerator({.communicator = communicator});
    auto loader = accelerator.data_loader(test::Numbers(11), {.batch_size = 3});
    std::vector<at::Tensor> all;
    std::int64_t waits = 0;
    for (const auto& batch : loader) {
      const at::Tensor on_device = at::tensor(batch, at::kInt).to(device);
      waits += waits_during(communicator, [&] { all.push_back(accelerator.gather_for_metrics(on_device)); });
    }
    EXPECT_EQ(waits, 0);
    EXPECT_EQ(at::cat(all).cpu().numel(), 11);
    EXPECT_TRUE(at::equal(std::get<0>(at::cat(all).cpu().sort()), at::arange(11, at::kInt)));
  });
}

// One rank's tensor is in CPU memory: the call uses host memory, and each result is where the rank's tensor is.
TEST(DeviceTrainCollectives, RanksMayUseDifferentDeviceTypes) {
  run_on_each_backend([](const Communicator& communicator, at::Device device) {
    const at::Device place = communicator.rank() == 0 ? device : at::Device(at::kCPU);
    const at::Tensor x = at::full({3}, 1.0 + communicator.rank(), at::TensorOptions(at::kFloat).device(place));
    EXPECT_EQ(gather(communicator, x).device(), place);
    EXPECT_EQ(gather(communicator, x).sum().item<double>(), 9);
    EXPECT_EQ(reduce(communicator, x).sum().item<double>(), 9);
    EXPECT_EQ(broadcast(communicator, x, 1).sum().item<double>(), 6);
  });
}

TEST(DeviceTrainCollectives, AllGatherWithGradHasTheHostsGradients) {
  run_on_each_backend([](const Communicator& communicator, at::Device device) {
    const AllGatherWithGrad gather_rows(communicator);
    const auto gradient_on = [&](at::Device place) {
      const at::Tensor x = values_of(communicator.rank()).to(place).requires_grad_();
      const at::Tensor all = gather_rows(x);
      const at::Tensor weights = at::arange(all.size(0), at::kFloat).unsqueeze(1).to(place);
      (all * weights).square().sum().backward();
      return x.grad();
    };
    const at::Tensor expected = gradient_on(at::kCPU);
    const at::Tensor gradient = gradient_on(device);
    EXPECT_EQ(gradient.device(), device);
    EXPECT_TRUE(at::allclose(gradient.cpu(), expected));
  });
}

}  // namespace
}  // namespace tutti::device_train_collectives_test
