// Ranks: 2 as threads, each with a simulated device. Device tensors through ProcessGroupTutti, as torch.distributed
// passes them, over shared memory and over TCP.
#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/slow_device.h"
#include "process_group/groups.h"
#include "support/simulated_device/simulated_device.h"

namespace tutti::device_process_group_test {
namespace {

namespace simulated = test::simulated;
using test::run_groups;
using test::SlowKernels;
using test::Tensors;
using test::waits_during;

constexpr std::int64_t elements = 20000;

/// Runs `body` with the rank's device, over each backend.
void run_device_groups(const std::function<void(ProcessGroupTutti&, at::Device)>& body) {
  for (const char* backend : {"auto", "tcp"}) {
    SCOPED_TRACE(backend);
    const auto on_device = [&](ProcessGroupTutti& group) {
      simulated::set_current_device(group.getRank());
      body(group, at::Device(simulated::type, static_cast<at::DeviceIndex>(group.getRank())));
    };
    run_groups(2, on_device, backend);
  }
}

at::Tensor values_of(int rank) {
  return at::arange(elements, at::kFloat).mul(rank + 1);
}

struct Call {
  const char* name;
  at::Tensor (*run)(ProcessGroupTutti& group, const at::Tensor& x);
};

const std::vector<Call> calls = {
    {"all_reduce",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       Tensors tensors{x.clone()};
       group.allreduce(tensors, {})->wait();
       return tensors[0];
     }},
    {"all_gather into a list",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       std::vector<Tensors> outputs{{at::empty_like(x), at::empty_like(x)}};
       Tensors inputs{x};
       group.allgather(outputs, inputs, {})->wait();
       return at::cat(outputs[0]);
     }},
    {"all_gather into a tensor",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       at::Tensor output = at::empty({2 * x.numel()}, x.options()), input = x;
       group._allgather_base(output, input, {})->wait();
       return output;
     }},
    {"reduce_scatter of a list",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       Tensors outputs{at::empty({x.numel() / 2}, x.options())};
       std::vector<Tensors> inputs{{x.slice(0, 0, x.numel() / 2), x.slice(0, x.numel() / 2)}};
       group.reduce_scatter(outputs, inputs, {})->wait();
       return outputs[0];
     }},
    {"all_to_all with splits",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       const bool is_first = group.getRank() == 0;
       std::vector<std::int64_t> sent{100, x.numel() - 100}, taken{100, 100};
       if (!is_first) taken = {x.numel() - 100, x.numel() - 100};
       at::Tensor output = at::empty({taken[0] + taken[1]}, x.options()), input = x;
       group.alltoall_base(output, input, taken, sent, {})->wait();
       return output;
     }},
    {"reduce",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       Tensors tensors{x.clone()};
       group.reduce(tensors, {})->wait();
       return tensors[0];
     }},
    {"broadcast",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       Tensors tensors{x.clone()};
       group.broadcast(tensors, {})->wait();
       return tensors[0];
     }},
    {"gather",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       std::vector<Tensors> outputs;
       if (group.getRank() == 0) outputs.push_back({at::empty_like(x), at::empty_like(x)});
       Tensors inputs{x};
       group.gather(outputs, inputs, {})->wait();
       return outputs.empty() ? x : at::cat(outputs[0]);
     }},
    {"messages",
     [](ProcessGroupTutti& group, const at::Tensor& x) {
       Tensors sent{x}, received{at::empty_like(x)};
       const auto receive = group.recv(received, 1 - group.getRank(), 3);
       group.send(sent, 1 - group.getRank(), 3)->wait();
       receive->wait();
       return received[0];
     }},
};

TEST(DeviceProcessGroup, CallsHaveTheHostsBitsAndDoNotWaitForTheDevice) {
  run_device_groups([](ProcessGroupTutti& group, at::Device device) {
    for (const Call& call : calls) {
      const at::Tensor expected = call.run(group, values_of(group.getRank())).add(1);
      const at::Tensor input = values_of(group.getRank()).to(device);
      at::Tensor result;
      const SlowKernels slow(1000);
      const auto waits = waits_during(group.communicator(), [&] { result = call.run(group, input.mul(1)).add(1); });
      EXPECT_EQ(waits, 0) << call.name;
      EXPECT_TRUE(at::equal(result.cpu(), expected)) << call.name;
      group.communicator().barrier().wait();
    }
  });
}

// The future's wait() makes the current stream wait, whether the future is made before or after the work completes.
TEST(DeviceProcessGroup, FuturesWorkOnTheDevice) {
  run_device_groups([](ProcessGroupTutti& group, at::Device device) {
    for (const bool early : {true, false}) {
      Tensors tensors{at::ones({elements}, at::TensorOptions(device))};
      at::Tensor result;
      {
        const SlowKernels slow(2000);
        const auto work = group.allreduce(tensors, {});
        auto future = early ? work->getFuture() : nullptr;
        if (!early) {
          while (!work->isCompleted()) std::this_thread::yield();
          future = work->getFuture();
        }
        const c10::StreamGuard guard(simulated::pool_stream(device.index()));
        future->wait();
        EXPECT_TRUE(future->value().toTensorVector()[0].is_same(tensors[0]));
        result = tensors[0].add(1);
      }
      simulated::wait_for_device(device.index(), "the test reads");
      EXPECT_EQ(result.sum().item<double>(), 3.0 * elements);
    }
  });
}

// wait() with a timeout, which does not wait for each part.
TEST(DeviceProcessGroup, WaitWithATimeoutMakesTheStreamWait) {
  run_device_groups([](ProcessGroupTutti& group, at::Device device) {
    const SlowKernels slow(1000);
    std::vector<Tensors> outputs{
        {at::empty({elements}, at::TensorOptions(device)), at::empty({elements}, at::TensorOptions(device))}};
    Tensors inputs{at::ones({elements}, at::TensorOptions(device))};
    group.allgather(outputs, inputs, {})->wait(std::chrono::seconds(20));
    EXPECT_EQ(at::cat(outputs[0]).sum().item<double>(), 2.0 * elements);
  });
}

}  // namespace
}  // namespace tutti::device_process_group_test
