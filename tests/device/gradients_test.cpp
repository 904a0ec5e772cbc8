// Ranks: 1 and 2 as threads, each with a simulated device. Gradients on devices: their memory, streams and kernels.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "device/both.h"
#include "device/slow_device.h"
#include "support/training.h"
#include "sync/gradient_store.h"
#include "tutti/sync/distributed_data_parallel.h"
#include "tutti/tutti.h"

namespace tutti::device_gradients_test {
namespace {

namespace simulated = test::simulated;
using sync::ExternalClear;
using sync::GradientStore;
using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;

/// Eight parameters.
struct DeepImpl : torch::nn::Module {
  DeepImpl()
      : layers(register_module(
            "layers", torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::GELU(), torch::nn::Linear(16, 16),
                                            torch::nn::GELU(), torch::nn::Linear(16, 16), torch::nn::GELU(),
                                            torch::nn::Linear(16, 3)))) {
    test::fill(*this, 6);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Deep);

/// Micro-batches of a rank, on a device.
std::vector<test::Batch> batches_of(int rank, int count, at::Device device) {
  std::vector<test::Batch> batches;
  for (int i = 0; i < count; ++i) {
    const test::Batch batch = test::batch_of(10 * i + rank);
    batches.push_back({.input = batch.input.to(device), .target = batch.target.to(device)});
  }
  return batches;
}

void train(Accelerator& accelerator, Deep& model, Optimizer& optimizer, const std::vector<test::Batch>& batches) {
  for (const test::Batch& batch : batches) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(test::loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(DeviceGradients, AStepTakesNoWaitsAndAsFewKernelsAsC10d) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
    Deep net;
    net->to(device);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    const auto batches = batches_of(communicator.rank(), 2 * 4, device);
    train(accelerator, model, optimizer, batches);
    EXPECT_EQ(waits_during(communicator, [&] { train(accelerator, model, optimizer, batches); }), 0);
    // c10d::Reducer and LibTorch's AdamW take 147 in this loop.
    EXPECT_LE(simulated::counts().kernels, 147 * 4 * communicator.size());
    communicator.barrier().wait();
  });
}

/// Parameters after a few steps, which a stream of the program's own runs.
test::RankBody trains_in_a_stream_of_its_own(const std::string& backend) {
  return [backend](const Communicator& communicator, at::Device device) {
    std::vector<at::Tensor> ends;
    std::optional<c10::StreamGuard> guard;
    // The program must keep its own tensors of the default stream until its other stream has used them.
    Deep net;
    net->to(device);
    const auto batches = batches_of(communicator.rank(), 4, device);
    {
      Accelerator accelerator({.communicator = communicator});
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
      if (device != at::kCPU) {
        simulated::wait_for_device(device.index(), "test");
        guard.emplace(simulated::pool_stream(device.index()));
      }
      train(accelerator, model, optimizer, batches);
      ends = test::tensors_of(*net);
      communicator.barrier().wait();
    }
    // The default stream reuses the memory that the reducer has freed, while the program's stream still works.
    if (device != at::kCPU) {
      const c10::StreamGuard other(simulated::default_stream(device.index()));
      for (int i = 0; i < 20; ++i) at::full({700}, 1e9, at::TensorOptions(at::kFloat).device(device));
      simulated::wait_for_device(device.index(), "test");
    }
    return ends;
  };
}

TEST(DeviceGradients, AProgramsOwnStreamKeepsTheMemory) {
  const auto expected = test::results_on_cpu(2, trains_in_a_stream_of_its_own(""));
  const SlowKernels slow(300);
  for (const std::string backend : {"auto", "staged"}) {
    test::expect_equal(test::results_on_devices({.backend = backend}, trains_in_a_stream_of_its_own(backend)), expected,
                       1e-5);
  }
}

TEST(DeviceGradients, DistributedDataParallelEqualsTheCpu) {
  const test::RankBody body = [](const Communicator& communicator, at::Device device) {
    Deep net;
    net->to(device);
    DistributedDataParallel ddp(*net, communicator);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (const test::Batch& batch : batches_of(communicator.rank(), 4, device)) {
      test::loss_of(net->forward(batch.input), batch.target).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    {
      const auto scope = ddp.no_sync();
      test::loss_of(net->forward(test::batch_of(1).input.to(device)), test::batch_of(1).target.to(device)).backward();
    }
    test::loss_of(net->forward(test::batch_of(2).input.to(device)), test::batch_of(2).target.to(device)).backward();
    optimizer.step();
    return test::tensors_of(*net);
  };
  const auto expected = test::results_on_cpu(2, body);
  const SlowKernels slow(100);
  for (const std::string backend : {"auto", "staged"}) {
    test::expect_equal(test::results_on_devices({.backend = backend}, body), expected, 1e-5);
  }
}

/// Two layers, which may be on two devices. They are registered in reverse, so that the bucket that is summed first is
/// complete last: the thread of the first layer's device then starts the buckets of both devices.
struct SplitImpl : torch::nn::Module {
  SplitImpl() {
    register_module("second", second);
    register_module("first", first);
    test::fill(*this, 8);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(first(x.to(first->weight.device())).tanh().to(second->weight.device()));
  }
  torch::nn::Linear first{6, 5}, second{5, 3};
};
TORCH_MODULE(Split);

/// Trains with the first layer on the rank's device and the second on that of `second_device`. `own_streams`: in
/// streams of the program's own on both.
test::RankBody trains_on_two(const std::function<at::Device(at::Device)>& second_device, bool own_streams = false) {
  return [second_device, own_streams](const Communicator& communicator, at::Device device) {
    std::optional<c10::MultiStreamGuard> guard;
    if (own_streams) {
      const std::vector<c10::Stream> streams{simulated::pool_stream(device.index()),
                                             simulated::pool_stream(second_device(device).index())};
      guard.emplace(streams);
    }
    Accelerator accelerator({.buckets = {.reorder = false}, .communicator = communicator});
    Split net;
    net->first->to(device);
    net->second->to(second_device(device));
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 3; ++step) {
      const auto scope = accelerator.accumulate(model);
      const test::Batch batch = test::batch_of(2 * step + communicator.rank());
      const at::Tensor output = model->forward(batch.input);
      accelerator.backward(test::loss_of(output, batch.target.to(output.device())));
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto ends = test::tensors_of(*net);
    for (const at::Tensor& end : ends) {
      if (!end.is_cpu()) simulated::wait_for_device(end.device().index(), "test");
    }
    return ends;
  };
}

TEST(DeviceGradients, OfTwoDevicesInOneModel) {
  const auto expected = test::results_on_cpu(2, trains_on_two([](at::Device device) { return device; }));
  const SlowKernels slow(100);
  const auto another = [](at::Device device) {
    return at::Device(device.type(), static_cast<at::DeviceIndex>(device.index() + 2));
  };
  const auto cpu = [](at::Device) { return at::Device(at::kCPU); };
  for (const bool own_streams : {false, true}) {
    test::expect_equal(test::results_on_devices({.backend = "staged"}, trains_on_two(another, own_streams)), expected,
                       1e-5);
  }
  for (const std::string backend : {"auto", "staged"}) {
    test::expect_equal(test::results_on_devices({.backend = backend}, trains_on_two(cpu)), expected, 1e-5);
  }
}

/// Two dense parameters of a device and one without elements in one bucket, on one rank.
class DeviceGradientStore : public testing::Test {
 protected:
  static at::Tensor parameter(std::int64_t elements) {
    return at::zeros({elements}, at::TensorOptions(at::kFloat).device(at::Device(simulated::type, 0))).requires_grad_();
  }
  void set_gradient(int parameter, double value) {
    const at::Tensor& tensor = parameters_.trained[parameter].tensor;
    tensor.mutable_grad() = at::full_like(tensor, value).detach();
    store_.on_gradient(parameter);
  }
  at::Tensor& gradient(int parameter) const { return parameters_.trained[parameter].tensor.mutable_grad(); }
  static Window pending_window() {
    Window window;
    window.begin_plain_pass();
    window.add_pending();
    return window;
  }

  sync::ParameterSet parameters_{{{.name = "weight", .tensor = parameter(3)},
                                  {.name = "bias", .tensor = parameter(2)},
                                  {.name = "empty", .tensor = parameter(0)}}};
  Communicator communicator_;
  GradientStore store_{parameters_, {}, communicator_};
  const at::NoGradGuard no_grad_;
};

TEST_F(DeviceGradientStore, MovesGradientsAtTheEndOfAPass) {
  set_gradient(0, 2);
  set_gradient(1, 5);
  const at::Tensor outside = gradient(0);
  store_.record(true);
  EXPECT_NE(gradient(0).const_data_ptr(), outside.const_data_ptr());
  EXPECT_EQ(store_.foreign(true), std::nullopt);
  EXPECT_EQ(gradient(0).sum().item<double>() + gradient(1).sum().item<double>(), 16);
  EXPECT_EQ(store_.fill_bucket(0).sum().item<double>(), 16);
  EXPECT_EQ(store_.copied(), 0) << "gradients that autograd has just made";
}

TEST_F(DeviceGradientStore, AHeldGradientKeepsItsValues) {
  set_gradient(0, 2);
  store_.record(true);
  const at::Tensor held = gradient(0);
  const at::Tensor view = held.view({-1});
  store_.clear(true);
  set_gradient(0, 7);
  store_.record(true);
  EXPECT_EQ(gradient(0).sum().item<double>(), 21);
  EXPECT_EQ(held.sum().item<double>(), 6);
  EXPECT_EQ(view.sum().item<double>(), 6);
}

TEST_F(DeviceGradientStore, FindsZerosWithOneWait) {
  set_gradient(0, 2);
  set_gradient(1, 5);
  set_gradient(2, 0);
  store_.record(true);
  gradient(0).zero_();
  EXPECT_THROW(store_.find_external_clear(pending_window(), true), UsageError);
  gradient(1).zero_();
  simulated::reset_counts();
  EXPECT_EQ(store_.find_external_clear(pending_window(), true), ExternalClear::zeroed);
  EXPECT_EQ(simulated::counts().all_waits(), 1);
}

TEST_F(DeviceGradientStore, AGradientOfAFailedPassIsNotMoved) {
  set_gradient(0, 2);
  store_.begin_pass(false);
  gradient(0) = at::full_like(parameters_.trained[0].tensor, 9).detach();
  store_.record(true);
  EXPECT_EQ(store_.foreign(true), "'weight'");
}

}  // namespace
}  // namespace tutti::device_gradients_test
