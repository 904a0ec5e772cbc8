// Ranks: 2 and 3 as threads, each with a simulated device and the simulated NCCL.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <future>
#include <mutex>
#include <stdexcept>

#include "support/simulated_device/ranks.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/tutti.h"

namespace tutti::test::c10d_failure_test {
namespace {

/// A kernel that runs until the test releases it.
class StuckDevice {
 public:
  void stop(at::Device device) {
    simulated::launch(simulated::current_stream(device.index()), [released = released_] { released.wait(); });
  }
  void release() {
    std::call_once(once_, [&] { promise_.set_value(); });
  }
  ~StuckDevice() { release(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> released_ = promise_.get_future().share();
  std::once_flag once_;
};

/// Allocated memory of one float for each element, filled on the device.
at::Tensor filled(const Communicator& communicator, at::Device device, double value) {
  return comm::GradientCommunicator(communicator).allocate(64, device).view(at::kFloat).fill_(value);
}

std::unique_ptr<comm::PendingAllReduce> started_sum(const Communicator& communicator, const at::Tensor& memory) {
  auto sum = comm::GradientCommunicator(communicator).start_all_reduce(memory);
  sum->finish_reduce_scatter(1);
  sum->wait();
  sum->block_current_stream();
  return sum;
}

void expect_ranks(const std::function<void()>& call, const std::vector<int>& ranks, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const PeerError& error) {  // also TimeoutError
    EXPECT_EQ(error.ranks(), ranks) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

void a_device_stops(int size) {
  StuckDevice stuck;
  run_simulated_ranks({.size = size, .timeout = std::chrono::seconds(2)},
                      [&](const Communicator& communicator, at::Device device) {
                        const at::Tensor memory = filled(communicator, device, 1);
                        communicator.barrier().wait();
                        if (communicator.rank() == 1) stuck.stop(device);
                        memory.add_(1);
                        const auto sum = started_sum(communicator, memory);
                        if (communicator.rank() != 1) {
                          (void)memory.sum().item<double>();  // returns because the watchdog aborts the sum
                          expect_ranks([&] { communicator.barrier().wait(); }, {1},
                                       "rank 1 did not take part in a collective on the device within 2 s");
                          EXPECT_TRUE(communicator.failed());
                          if (communicator.rank() == 0) stuck.release();
                        } else {
                          simulated::wait_for_device(device.index(), "test");
                          expect_ranks([&] { communicator.barrier().wait(); }, {1}, "this rank (1)");
                        }
                      });
}

TEST(C10dFailure, ADeviceThatStopsInsideASumIsNamed) {
  a_device_stops(2);
}

TEST(C10dFailure, ADeviceThatStopsIsNamedAmongSeveralRanks) {
  a_device_stops(3);
}

TEST(C10dFailure, ARankThatLeavesEndsTheSumsOfTheOthers) {
  StuckDevice stuck;
  const auto body = [&](const Communicator& communicator, at::Device device) {
    const at::Tensor memory = filled(communicator, device, 1);
    communicator.barrier().wait();
    if (communicator.rank() == 1) stuck.stop(device);
    memory.add_(1);
    const auto sum = started_sum(communicator, memory);
    if (communicator.rank() == 1) throw std::runtime_error("of the program");
    (void)memory.sum().item<double>();
    expect_ranks([&] { communicator.barrier().wait(); }, {1}, "rank 1");
    stuck.release();
  };
  EXPECT_THROW(run_simulated_ranks({.timeout = std::chrono::minutes(2)}, body), std::runtime_error);
}

TEST(C10dFailure, ALostSynchronizationLeavesFreedMemoryAlone) {
  const auto body = [](const Communicator& communicator, at::Device device) {
    std::vector<at::Tensor> later;
    std::int64_t elements = 0;
    {
      Accelerator accelerator({.communicator = communicator});
      Mlp net;
      net->to(device);
      for (const at::Tensor& parameter : net->parameters()) elements += parameter.numel();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
      accelerator.wait_for_everyone();
      simulated::settings().microseconds_per_kernel = 2000;
      try {
        const auto scope = accelerator.accumulate(model);
        const Batch batch = batch_of(communicator.rank());
        accelerator.backward(loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
        throw std::logic_error("of the program");
      } catch (const std::logic_error&) {
        // The synchronization is in flight, and no step waits for it.
      }
    }
    for (int i = 0; i < 16; ++i) later.push_back(at::zeros({elements}, at::TensorOptions(at::kFloat).device(device)));
    simulated::settings().microseconds_per_kernel = 0;
    simulated::wait_for_device(device.index(), "test");
    for (const at::Tensor& tensor : later) EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>(), 0);
  };
  run_simulated_ranks({}, body);
}

TEST(C10dFailure, AnAbortEndsASumThatOneRankHasStarted) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor memory = filled(communicator, device, 1);
    communicator.barrier().wait();
    if (communicator.rank() == 0) {
      const auto sum = started_sum(communicator, memory);
      communicator.abort("the program ends");
      (void)memory.sum().item<double>();
    }
    EXPECT_THROW(communicator.barrier().wait(), Error);
  });
}

TEST(C10dFailure, ABackendThatCannotConnectIsNamedOnAllRanks) {
  auto factory = simulated_nccl();
  factory.make = [make = factory.make](const std::string& group, int rank, int size, c10::Device on) {
    if (rank == 1) throw std::runtime_error("two ranks on one device");
    return make(group, rank, size, on);
  };
  run_thread_ranks(3,
                   [](const Communicator& communicator) {
                     simulated::set_current_device(communicator.rank());
                     const at::Device device(simulated::type, static_cast<at::DeviceIndex>(communicator.rank()));
                     expect_ranks(
                         [&] { comm::GradientCommunicator(communicator).allocate(8, device); }, {1},
                         "failed on rank 1, " + at::Device(simulated::type, 1).str() + ": two ranks on one device");
                     communicator.barrier().wait();
                     EXPECT_FALSE(communicator.failed()) << "nothing was sent";
                   },
                   {.device_backend = factory, .timeout = std::chrono::seconds(20)});
}

TEST(C10dFailure, ADeviceThatTheMachineDoesNotHaveIsNamedOnAllRanks) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    if (communicator.rank() == 1) device = at::Device(simulated::type, simulated::most_devices);
    expect_ranks([&] { comm::GradientCommunicator(communicator).allocate(8, device); }, {1}, "is not available");
  });
}

}  // namespace
}  // namespace tutti::test::c10d_failure_test
