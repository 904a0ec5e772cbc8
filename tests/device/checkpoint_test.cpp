// Ranks: 1 and 2 as threads, each with a simulated device. Checkpoints of models on devices, loaded on the same device,
// on the CPU, and from the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <future>

#include "support/simulated_device/ranks.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::device_checkpoint_test {
namespace {

using Tensors = std::vector<at::Tensor>;

torch::nn::Sequential make_net(at::Device device) {
  // Without a bias before BatchNorm: its gradient is rounding alone, which AdamW would scale up.
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(6, 8).bias(false)), torch::nn::BatchNorm1d(8),
                            torch::nn::Linear(8, 3));
  fill(*net, 1);
  net->to(device);
  return net;
}

Tensors state_of(const torch::nn::Module& module) {
  Tensors state;
  for (const at::Tensor& parameter : module.parameters()) state.push_back(parameter.detach().cpu());
  for (const at::Tensor& buffer : module.buffers()) state.push_back(buffer.detach().cpu());
  return state;
}

/// Trains from `first` to `last`, from the checkpoint `load_from` if it is set, and saves to `save_to`.
struct Part {
  int first = 0;
  int last = 0;
  std::filesystem::path load_from{};
  std::filesystem::path save_to{};
  bool asynchronous = false;
};

Tensors train(const Communicator& communicator, at::Device device, const Part& part) {
  Accelerator accelerator({.communicator = communicator});
  auto net = make_net(device);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  if (!part.load_from.empty()) accelerator.load_state(part.load_from);
  const auto step = [&](int number) {
    const Batch batch = batch_of(number * communicator.size() + communicator.rank());
    accelerator.backward(loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int number = part.first; number < part.last; ++number) step(number);
  if (!part.save_to.empty()) {
    accelerator.save_state({.folder = part.save_to, .asynchronous = part.asynchronous});
    // Training continues on the memory that is being saved.
    for (int number = part.last; part.asynchronous && number < part.last + 3; ++number) step(number);
    accelerator.wait_for_checkpoint();
  }
  return state_of(*net);
}

TEST(DeviceCheckpoint, ResumesOnTheDeviceAndOnAnotherType) {
  for (const int size : {1, 2}) {
    for (const auto& [saves_on_device, loads_on_device] : {std::pair(true, true), {true, false}, {false, true}}) {
      SCOPED_TRACE(std::to_string(size) + (saves_on_device ? " ranks, from the device" : " ranks, from the CPU") +
                   (loads_on_device ? " to the device" : " to the CPU"));
      const TemporaryFolder folder;
      const auto path = folder.path() / "checkpoint";
      run_simulated_ranks({.size = size}, [&, saves = saves_on_device, loads = loads_on_device](
                                              const Communicator& communicator, at::Device device) {
        const at::Device here = saves ? device : at::Device(at::kCPU), there = loads ? device : at::Device(at::kCPU);
        const Tensors expected = train(communicator, here, {.first = 0, .last = 6});
        train(communicator, here, {.first = 0, .last = 3, .save_to = path, .asynchronous = true});
        const Tensors resumed = train(communicator, there, {.first = 3, .last = 6, .load_from = path});
        EXPECT_TRUE(close(resumed, expected, 1e-5));
        if (saves == loads) {
          for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(resumed[i].equal(expected[i])) << i;
        }
      });
    }
  }
}

TEST(DeviceCheckpoint, AnAsynchronousSaveDoesNotWaitForTheDevice) {
  const TemporaryFolder folder;
  run_simulated_ranks({.size = 1}, [&](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.communicator = communicator});
    auto net = make_net(device);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    accelerator.backward(model->forward(batch_of(0).input.to(device)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    const Tensors saved = state_of(*net);
    const c10::Stream stream = simulated::current_stream(device.index());
    std::promise<void> release;
    simulated::launch(stream, [ready = release.get_future().share()] { ready.wait_for(std::chrono::seconds(20)); });
    accelerator.save_state({.folder = folder.path() / "checkpoint", .asynchronous = true});
    EXPECT_FALSE(simulated::is_idle(stream));
    release.set_value();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.zero_();
    }
    accelerator.wait_for_checkpoint();
    accelerator.load_state(folder.path() / "checkpoint");
    const Tensors loaded = state_of(*net);
    for (std::size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(loaded[i].equal(saved[i])) << i;
  });
}

TEST(DeviceCheckpoint, CopiesOfAStateWaitOnceForEachDevice) {
  StateDict state;
  for (int i = 0; i < 10; ++i) {
    const at::Device device(simulated::type, static_cast<at::DeviceIndex>(i % 2));
    state.set("tensor" + std::to_string(i), at::full({3, 2}, i, at::TensorOptions(device)).t());
  }
  state.set("on the host", at::ones({2}));
  simulated::reset_counts();
  const StateDict copy = copy_to_cpu(state);
  EXPECT_EQ(simulated::counts().all_waits(), 2);
  for (int i = 0; i < 10; ++i) {
    const auto& tensor = copy.get<at::Tensor>("tensor" + std::to_string(i));
    EXPECT_TRUE(tensor.is_contiguous() && tensor.equal(at::full({2, 3}, i, at::kFloat)));
  }
  EXPECT_FALSE(copy.get<at::Tensor>("on the host").is_same(state.get<at::Tensor>("on the host")));
}

TEST(DeviceCheckpoint, AModelIsSavedWithOneWaitAndLoadedWithNone) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  const at::Device device(simulated::type, 0);
  const auto saved = make_net(device);
  simulated::reset_counts();
  save_model(*saved, path);
  EXPECT_EQ(simulated::counts().all_waits(), 1);
  auto loaded = make_net(device);
  fill(*loaded, 2);
  simulated::reset_counts();
  load_model(*loaded, path);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  auto on_cpu = make_net(at::kCPU);
  load_model(*on_cpu, path);
  const Tensors expected = state_of(*saved);
  for (const Tensors& actual : {state_of(*loaded), state_of(*on_cpu)}) {
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
  }
}

}  // namespace
}  // namespace tutti::test::device_checkpoint_test
