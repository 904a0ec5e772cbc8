// Ranks: 2 and 4 as threads, each with a simulated device. Local SGD and its family on devices, against the same run in
// CPU memory.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <mutex>

#include "local_sgd/local_run.h"
#include "support/simulated_device/ranks.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::device_local_sgd_test {
namespace {

struct Method {
  std::string name;
  RunOptions options;
  int size = 2;
  int num_nodes = 1;
  int steps = 11;
};

/// The state of each rank at the end, in CPU memory.
using Ends = std::vector<Tensors>;

Tensors state_of(const LocalRun& run) {
  Tensors state;
  for (const at::Tensor& parameter : run.parameters) state.push_back(parameter.detach().cpu());
  state.push_back(run.buffer.cpu());
  state.push_back(run.counter.cpu());
  return state;
}

Ends run_on(bool on_device, const Method& method) {
  Ends ends(static_cast<std::size_t>(method.size));
  std::mutex mutex;
  const auto body = [&](const Communicator& communicator, at::Device device) {
    RunOptions options = method.options;
    options.device = device;
    LocalRun run(communicator, options);
    for (int i = 0; i < method.steps; ++i) run.step(1 + communicator.rank());
    run.finish();
    const std::lock_guard lock(mutex);
    ends[static_cast<std::size_t>(communicator.rank())] = state_of(run);
  };
  if (on_device) {
    run_simulated_ranks({.size = method.size, .num_nodes = method.num_nodes}, body);
  } else {
    run_thread_ranks(
        method.size, [&](const Communicator& communicator) { body(communicator, at::kCPU); }, {}, method.num_nodes);
  }
  return ends;
}

std::vector<Method> methods() {
  using enum OuterOptimizer;
  std::vector<Method> all;
  const auto add = [&all](const std::string& name, LocalSgdAlgorithmOptions updates) -> Method& {
    updates.local_steps = 4;
    return all.emplace_back(Method{.name = name, .options = {.updates = updates, .momentum = 0.9}});
  };
  add("average", {});
  add("post-local", {.warmup_steps = 2, .check_replicas = false});
  add("slowmo", {.outer_optimizer = slowmo});
  for (const WireFormat wire : {WireFormat::fp32, WireFormat::bf16, WireFormat::int8}) {
    add("diloco, wire " + std::to_string(static_cast<int>(wire)), {.outer_optimizer = diloco, .wire = wire});
  }
  add("streaming, mix", {.outer_optimizer = diloco, .streaming = {.fragments = 2, .overlap_steps = 1, .mix = 0.5}});
  add("streaming, int8",
      {.outer_optimizer = diloco, .streaming = {.fragments = 2, .overlap_steps = 1}, .wire = WireFormat::int8});
  add("streaming, local progress", {.streaming = {.fragments = 2, .overlap_steps = 1, .keep_local_progress = true}});
  add("buffers of rank 0", {.state_sync = {.buffers = BufferRule::broadcast}});
  add("momentum", {.state_sync = {.momentum = MomentumRule::average}}).options.adam = true;
  add("double", {}).options.dtype = at::kDouble;
  Method& nodes = add("nodes", {.node_sync_steps = 2, .wire = WireFormat::int8});
  nodes.size = 4;
  nodes.num_nodes = 2;
  return all;
}

TEST(DeviceLocalSgd, EndsWithTheBitsOfTheCpu) {
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    const Ends expected = run_on(false, method);
    const Ends actual = run_on(true, method);
    for (int rank = 0; rank < method.size; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      EXPECT_TRUE(same_bits(actual[i], expected[i]))
          << "rank " << rank << ": largest difference " << largest_difference(actual[i], expected[i]);
    }
  }
}

// A copy that does not wait for the device's kernels, or that they do not wait for, shows here.
TEST(DeviceLocalSgd, SlowKernelsChangeNothing) {
  const Method method = methods()[6];
  const Ends expected = run_on(false, method);
  simulated::settings().microseconds_per_kernel = 1000;
  const Ends actual = run_on(true, method);
  simulated::settings().microseconds_per_kernel = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(same_bits(actual[rank], expected[rank]));
}

/// Waits of both ranks in eight steps, of which two end a round.
std::int64_t waits_of(LocalSgdAlgorithmOptions updates) {
  updates.local_steps = 4;
  std::int64_t waits = 0;
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    LocalRun run(communicator, {.updates = updates, .device = device});
    for (const at::Tensor& parameter : run.parameters) parameter.mutable_grad() = at::ones_like(parameter);
    communicator.barrier().wait();
    if (communicator.rank() == 0) simulated::reset_counts();
    communicator.barrier().wait();
    for (int i = 0; i < 8; ++i) {
      run.optimizer->step();
      run.algorithm->step(1);
    }
    communicator.barrier().wait();
    if (communicator.rank() == 0) waits = simulated::counts().all_waits();
    communicator.barrier().wait();
  });
  return waits;
}

TEST(DeviceLocalSgd, WaitsOnceForTheParametersOfARound) {
  // One wait for the parameters and one for the buffers; two ranks, two rounds.
  EXPECT_EQ(waits_of({}), 2 * 2 * 2);
  EXPECT_EQ(waits_of({.state_sync = {.buffers = BufferRule::local}}), 2 * 2);
  // Two fragments; the thread of the communicator waits for the copy of each.
  EXPECT_EQ(waits_of({.streaming = {.fragments = 2, .overlap_steps = 1}, .state_sync = {.buffers = BufferRule::local}}),
            2 * 2 * 2);
}

TEST(DeviceLocalSgd, ResumesOnAnotherDevice) {
  Method method{.name = "streaming",
                .options = {.updates = {.local_steps = 4,
                                        .outer_optimizer = OuterOptimizer::diloco,
                                        .streaming = {.fragments = 2, .overlap_steps = 1, .mix = 0.5},
                                        .wire = WireFormat::bf16,
                                        .check_replicas = false}}};
  const Ends expected = run_on(false, method);
  for (const bool from_device : {true, false}) {
    SCOPED_TRACE(from_device ? "from the device to the CPU" : "from the CPU to the device");
    run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
      RunOptions first = method.options, second = method.options;
      (from_device ? first : second).device = device;
      StateDict state;
      {
        LocalRun run(communicator, first);
        for (int i = 0; i < 6; ++i) run.step(1 + communicator.rank());  // an exchange is in flight
        state = run.save();
      }
      LocalRun run(communicator, second);
      run.restore(state);
      for (int i = 6; i < method.steps; ++i) run.step(1 + communicator.rank());
      run.finish();
      EXPECT_TRUE(same_bits(state_of(run), expected[static_cast<std::size_t>(communicator.rank())]));
    });
  }
}

TEST(DeviceLocalSgd, ParametersMayBeOnSeveralDevices) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    const at::Device other(simulated::type, static_cast<at::DeviceIndex>(2 + communicator.rank()));
    std::vector<NamedParameter> parameters;
    for (const at::Device place : {at::Device(at::kCPU), device, other, device}) {
      const auto number = static_cast<std::int64_t>(parameters.size());
      const at::Tensor parameter = at::ones({number + 1}, at::TensorOptions(place)).set_requires_grad(true);
      parameters.push_back({"parameter" + std::to_string(number), parameter});
    }
    LocalSgdAlgorithm algorithm(parameters, {}, nullptr, communicator.duplicate("local"), {.local_steps = 1});
    {
      const at::NoGradGuard no_grad;
      for (NamedParameter& parameter : parameters) parameter.tensor.add_(communicator.rank());
    }
    algorithm.step();
    for (const NamedParameter& parameter : parameters) {
      const at::Tensor values = parameter.tensor.detach().cpu();
      EXPECT_TRUE(values.equal(at::full_like(values, 1.5))) << parameter.name;
    }
  });
}

TEST(DeviceLocalSgd, ComparesReplicas) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor parameter = random_tensor({5}, communicator.rank() + 1).to(device).set_requires_grad(true);
    EXPECT_THROW(LocalSgdAlgorithm({{"weight", parameter}}, {}, nullptr, communicator), MismatchError);
  });
}

Tensors train(const Communicator& communicator, at::Device device) {
  Accelerator accelerator({.communicator = communicator});
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 3));
  fill(*net, 1);
  net->to(device);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  {
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 3, .enabled = true});
    for (int step = 0; step < 7; ++step) {
      const auto scope = accelerator.accumulate(model);
      const Batch batch = batch_of(step * communicator.size() + communicator.rank());
      accelerator.backward(loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
      optimizer.step();
      optimizer.zero_grad();
      local_sgd.step();
    }
  }
  Tensors state;
  for (const at::Tensor& parameter : net->parameters()) state.push_back(parameter.detach().cpu());
  for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer.detach().cpu());
  return state;
}

TEST(DeviceLocalSgd, TrainsAPreparedModelWithBuffers) {
  std::vector<Tensors> expected(2);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    expected[static_cast<std::size_t>(communicator.rank())] = train(communicator, at::kCPU);
  });
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    EXPECT_TRUE(close(train(communicator, device), expected[static_cast<std::size_t>(communicator.rank())], 1e-5));
  });
}

}  // namespace
}  // namespace tutti::test::device_local_sgd_test
