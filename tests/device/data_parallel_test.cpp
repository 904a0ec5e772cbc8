// Ranks: none. DataParallel on one and on two simulated devices, against the module itself in CPU memory.
#include "tutti/data_parallel/data_parallel.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/simulated_device/simulated_device.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/amp/autocast.h"

namespace tutti::test::device_data_parallel_test {
namespace {

const at::Device first(simulated::type, 0);
const at::Device second(simulated::type, 1);

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() {
    reset();
    fill(*this, 1);
  }
  void reset() override {
    in = register_module("in", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (!x.is_cpu()) {
      EXPECT_EQ(simulated::current_device(), x.device().index()) << "of the replica's thread";
    }
    return out(norm(at::tanh(in(x))));
  }
  torch::nn::Linear in{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Net);

/// Training by three steps; in evaluation mode of BatchNorm, whose statistics would differ between pieces.
template <typename Forward>
std::vector<at::Tensor> train(Net& net, at::Device device, const Forward& forward) {
  net->norm->eval();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = random_tensor({7, 6}, 20 + step).to(device).set_requires_grad(true);
    loss_of(forward(x), random_tensor({7, 3}, 40 + step).to(device)).backward();
    EXPECT_EQ(x.grad().device(), device);
    optimizer.step();
  }
  std::vector<at::Tensor> ends;
  for (const at::Tensor& parameter : net->parameters()) ends.push_back(parameter.detach().cpu());
  return ends;
}

std::vector<at::Tensor> expected_ends() {
  Net net;
  return train(net, at::kCPU, [&](const at::Tensor& x) { return net(x); });
}

TEST(DeviceDataParallel, TrainsAsTheModuleItself) {
  const auto expected = expected_ends();
  for (const std::vector<at::Device>& devices : std::vector<std::vector<at::Device>>{{}, {first, second}}) {
    for (const int microseconds : {0, 500}) {
      SCOPED_TRACE(std::to_string(devices.size()) + " devices");
      simulated::settings().microseconds_per_kernel = microseconds;
      Net net;
      net->to(first);
      DataParallel parallel(net, {.devices = devices});
      EXPECT_TRUE(close(train(net, first, [&](const at::Tensor& x) { return parallel(x); }), expected, 1e-5));
      simulated::settings().microseconds_per_kernel = 0;
    }
  }
}

TEST(DeviceDataParallel, RunsOnStreamsOfTheProgram) {
  const auto expected = expected_ends();
  simulated::settings().microseconds_per_kernel = 500;
  Net net;
  net->to(first);
  simulated::wait_for_device(first.index(), "test");
  const c10::MultiStreamGuard guard(
      std::vector<c10::Stream>{simulated::pool_stream(first.index()), simulated::pool_stream(second.index())});
  DataParallel parallel(net, {.devices = {first, second}});
  EXPECT_TRUE(close(train(net, first, [&](const at::Tensor& x) { return parallel(x); }), expected, 1e-5));
  simulated::settings().microseconds_per_kernel = 0;
}

TEST(DeviceDataParallel, WaitsForNoDevice) {
  Net net;
  net->to(first);
  DataParallel parallel(net, {.devices = {first, second}});
  const at::Tensor x = random_tensor({7, 6}, 20).to(first);
  simulated::reset_counts();
  const at::Tensor y = parallel(x);
  EXPECT_EQ(y.device(), first);
  y.sum().backward();
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  for (const at::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.grad().device(), first);
}

TEST(DeviceDataParallel, ThreadsInheritTheDevicesAutocast) {
  Net net;
  net->to(first);
  net->eval();
  DataParallel parallel(net, {.devices = {first, second}});
  const bool before = at::autocast::is_autocast_enabled(simulated::type);
  at::autocast::set_autocast_enabled(simulated::type, true);
  at::autocast::set_autocast_dtype(simulated::type, at::kBFloat16);
  const at::Tensor y = parallel(random_tensor({4, 6}, 20).to(first));
  at::autocast::set_autocast_enabled(simulated::type, before);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
}

TEST(DeviceDataParallel, RefusesImpossibleDevices) {
  Net net;
  EXPECT_THROW(DataParallel(net, {.devices = {first, second}}), UsageError) << "the module is on the CPU";
  net->to(first);
  EXPECT_THROW(DataParallel(net, {.devices = {first, at::Device(simulated::type, 100)}}), UsageError);
  EXPECT_THROW(DataParallel(net, {.replicas = 3, .devices = {first, second}}), UsageError);
}

}  // namespace
}  // namespace tutti::test::device_data_parallel_test
