// Ranks: 2 and 3 as threads, each with a simulated device. Models that become equal at prepare(), and buffers after
// steps.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "device/both.h"
#include "device/slow_device.h"
#include "support/training.h"
#include "sync/replicate.h"
#include "train/model_buffers.h"
#include "tutti/tutti.h"

namespace tutti::device_buffers_test {
namespace {

namespace simulated = test::simulated;
using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;

/// BatchNorm, and buffers of other dtypes of which each rank has its own values.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int rank)
      : body(register_module("body", torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                                                           torch::nn::Linear(8, 1)))),
        steps(register_buffer("steps", at::full({3}, rank + 5, at::kLong))),
        wide(register_buffer("wide", at::full({2, 3}, 0.5 * rank, at::kDouble).t())),
        mask(register_buffer("mask", at::full({5}, rank == 0, at::kBool))),
        half(register_buffer("half", at::full({}, rank + 0.25, at::kBFloat16))) {
    test::fill(*this, 3 + static_cast<std::uint64_t>(rank));
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  torch::nn::Sequential body;
  at::Tensor steps, wide, mask, half;
};
TORCH_MODULE(Net);

void train_a_step(Accelerator& accelerator, Net& net, Optimizer& optimizer, at::Device device, int index) {
  const auto scope = accelerator.accumulate(net);
  const at::Tensor x = test::batch_of(index * accelerator.num_processes() + accelerator.rank()).input.to(device);
  accelerator.backward(net->forward(x).square().mean());
  optimizer.step();
  optimizer.zero_grad();
}

test::RankBody trains_with(BufferSync how) {
  return [how](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.buffer_sync = how, .communicator = communicator});
    Net net(communicator.rank());
    net->to(device);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 3; ++step) train_a_step(accelerator, model, optimizer, device, step);
    return test::tensors_of(*net);
  };
}

TEST(DeviceBuffers, AreThoseOfTheCpu) {
  for (const BufferSync how : {BufferSync::broadcast, BufferSync::mean, BufferSync::none}) {
    for (const int size : {2, 3}) {
      const auto expected = test::results_on_cpu(size, trains_with(how));
      const SlowKernels slow(100);
      for (const char* const backend : {"auto", "staged"}) {
        SCOPED_TRACE(std::string(backend) + ", buffer_sync " + std::to_string(static_cast<int>(how)));
        test::expect_equal(test::results_on_devices({.size = size, .backend = backend}, trains_with(how)), expected,
                           1e-5);
      }
    }
  }
}

TEST(DeviceBuffers, AStepDoesNotWaitForTheDevice) {
  for (const BufferSync how : {BufferSync::broadcast, BufferSync::mean}) {
    run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
      Accelerator accelerator({.buffer_sync = how, .communicator = communicator});
      Net net(0);
      net->to(device);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      std::vector<at::Tensor> batches;
      for (int i = 0; i < 3; ++i) batches.push_back(test::batch_of(i).input.to(device));
      const auto train = [&] {
        for (const at::Tensor& batch : batches) {
          const auto scope = accelerator.accumulate(model);
          accelerator.backward(model->forward(batch).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      train();
      EXPECT_EQ(waits_during(communicator, train), 0);
    });
  }
}

/// 40 buffers of two dtypes, in half of which ranks differ.
std::vector<ModelBuffer> many_buffers(int rank, at::Device device) {
  std::vector<ModelBuffer> buffers;
  for (int i = 0; i < 40; ++i) {
    const auto dtype = i % 3 == 0 ? at::kDouble : at::kFloat;
    const at::Tensor tensor = at::full({4, i + 1}, i % 2 == 0 ? rank + 1 : 7, at::TensorOptions(dtype).device(device));
    buffers.push_back({.named = {.name = "buffer" + std::to_string(i), .tensor = tensor}});
  }
  return buffers;
}

TEST(DeviceBuffers, ManyTakeFewKernelsAndKeepTheirVersions) {
  for (const BufferSync how : {BufferSync::broadcast, BufferSync::mean}) {
    run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
      const std::vector<ModelBuffer> buffers = many_buffers(communicator.rank(), device);
      std::vector<std::uint32_t> versions;
      for (const ModelBuffer& buffer : buffers) versions.push_back(buffer.named.tensor._version());
      EXPECT_EQ(waits_during(communicator, [&] { synchronize_buffers(buffers, how, communicator); }), 0);
      const auto kernels = simulated::counts().kernels;
      EXPECT_LE(kernels, 2 * 16) << "of 2 ranks";
      communicator.barrier().wait();
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        const double expected = i % 2 != 0 ? 7 : how == BufferSync::mean ? 1.5 : 1;
        EXPECT_TRUE(buffers[i].named.tensor.eq(expected).all().item<bool>()) << i;
        EXPECT_EQ(buffers[i].named.tensor._version(), versions[i]) << i;
      }
    });
  }
}

TEST(DeviceBuffers, PrepareWaitsOnceForAnyNumberOfTensors) {
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 40; ++i) {
      tensors.push_back(at::full({3}, communicator.rank() * (i % 2), at::TensorOptions(at::kFloat).device(device)));
    }
    const at::Tensor equal = tensors[0], differs = tensors[1];
    const auto version = equal._version();
    EXPECT_LE(waits_during(communicator, [&] { sync::replicate(tensors, communicator); }), 1);
    EXPECT_EQ(equal._version(), version) << "a graph may need a tensor that is equal already";
    EXPECT_EQ(differs.sum().item<float>(), 0);
  });
}

TEST(DeviceBuffers, ADifferentShapeNamesTheBuffer) {
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    const at::Tensor tensor = at::zeros({communicator.rank() + 2}, at::TensorOptions(at::kFloat).device(device));
    const std::vector<ModelBuffer> buffers{{.named = {.name = "table", .tensor = tensor}}};
    try {
      synchronize_buffers(buffers, BufferSync::broadcast, communicator);
      ADD_FAILURE() << "no error";
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("'table'"), std::string::npos) << error.what();
    }
  });
}

TEST(DeviceBuffers, ABufferOnAnotherTypeOfDeviceIsNamed) {
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    const at::Device other = communicator.rank() == 0 ? device : at::Device(at::kCPU);
    const std::vector<ModelBuffer> buffers{
        {.named = {.name = "table", .tensor = at::zeros({2}, at::TensorOptions(at::kFloat).device(other))}}};
    try {
      synchronize_buffers(buffers, BufferSync::broadcast, communicator);
      ADD_FAILURE() << "no error";
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("'table' is Float[2] on "), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace tutti::device_buffers_test
