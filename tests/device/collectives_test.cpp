// Ranks: 2 to 4 as threads, each with a simulated device. Collectives of device tensors over backends of the host,
// which must give the bits of host tensors.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "tutti/core/error.h"

namespace tutti::device_collectives_test {
namespace {

namespace simulated = test::simulated;
using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t elements = 12000;  // divisible by the number of ranks; 48 KB of fp32

at::Tensor values_of(int rank, at::ScalarType dtype = at::kFloat) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank) + 1);
  return at::randn({elements}, generator).mul(10).to(dtype);
}

Tensors parts_of(const at::Tensor& tensor, const Communicator& communicator) {
  return tensor.chunk(communicator.size());
}

/// A collective of `x`, on the device of `x`. Returns what it wrote.
struct Case {
  const char* name;
  at::Tensor (*run)(const Communicator& communicator, const at::Tensor& x);
};

const std::vector<Case> cases = {
    {"all_reduce",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor sum = x.clone();
       communicator.all_reduce(sum).wait();
       return sum;
     }},
    {"all_reduce_of_few_elements",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor mean = x.slice(0, 0, 5).clone();
       communicator.all_reduce(mean, ReduceOp::mean).wait();
       return mean;
     }},
    {"all_reduce_of_every_second_element",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor both = x.clone();
       communicator.all_reduce(both.view({-1, 2}).select(1, 1), ReduceOp::max).wait();
       return both;
     }},
    {"all_gather",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor all = at::empty({communicator.size(), x.numel()}, x.options());
       communicator.all_gather(all, x).wait();
       return all;
     }},
    {"reduce_scatter",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor part = at::empty({x.numel() / communicator.size()}, x.options());
       communicator.reduce_scatter(part, x).wait();
       return part;
     }},
    {"all_to_all",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor received = at::empty_like(x);
       communicator.all_to_all(received, x).wait();
       return received;
     }},
    {"all_to_all_v",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor received = at::empty_like(x);
       communicator.all_to_all_v(parts_of(received, communicator), parts_of(x, communicator)).wait();
       return received;
     }},
    {"broadcast",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor copy = x.clone();
       communicator.broadcast(copy, 1).wait();
       return copy;
     }},
    {"gather",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor all = at::zeros({communicator.size(), x.numel()}, x.options());
       communicator.gather(communicator.rank() == 1 ? all.unbind() : Tensors(), x, 1).wait();
       return all;
     }},
    {"scatter",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor part = at::empty({x.numel() / communicator.size()}, x.options());
       communicator.scatter(part, communicator.rank() == 1 ? parts_of(x, communicator) : Tensors(), 1).wait();
       return part;
     }},
    {"reduce",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor sum = x.clone();
       communicator.reduce(sum, 1).wait();
       return sum;
     }},
    {"two_in_flight",
     [](const Communicator& communicator, const at::Tensor& x) {
       const at::Tensor first = x.clone(), second = x.neg();
       const Work works[] = {communicator.all_reduce(first), communicator.all_reduce(second, ReduceOp::min)};
       works[1].wait();
       works[0].wait();
       return at::cat({first, second});
     }},
};

struct Place {
  const char* name;
  test::SimulatedRanks ranks;
};

const std::vector<Place> places = {
    {"messages", {.size = 2, .c10d_backend = false}},
    {"shared_memory", {.size = 3, .backend = "shared_memory", .c10d_backend = false}},
    {"staged", {.size = 2, .backend = "staged", .c10d_backend = false}},
    {"staged_over_shared_memory", {.size = 2, .backend = "staged:shared_memory", .c10d_backend = false}},
    {"staged_over_nodes", {.size = 4, .num_nodes = 2, .backend = "staged:hierarchical", .c10d_backend = false}},
};

class DeviceCollectives : public testing::TestWithParam<std::tuple<Place, Case>> {};

TEST_P(DeviceCollectives, HaveTheHostsBitsAndDoNotWaitForTheDevice) {
  const auto& [place, one] = GetParam();
  run_simulated_ranks(place.ranks, [&, run = one.run](const Communicator& communicator, at::Device device) {
    const at::Tensor host_values = values_of(communicator.rank());
    const at::Tensor expected = run(communicator, host_values.mul(3)).add(1);
    const at::Tensor device_values = host_values.to(device);
    at::Tensor result;
    const SlowKernels slow(2000);
    // The input is not computed when the collective is called, and the result is used right after wait().
    const auto waits = waits_during(communicator, [&] { result = run(communicator, device_values.mul(3)).add(1); });
    EXPECT_EQ(waits, 0);
    EXPECT_EQ(result.device(), device);
    EXPECT_TRUE(at::equal(result.cpu(), expected));
    communicator.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceCollectives,
                         testing::Combine(testing::ValuesIn(places), testing::ValuesIn(cases)),
                         [](const testing::TestParamInfo<DeviceCollectives::ParamType>& instance) {
                           return std::string(std::get<0>(instance.param).name) + "_" +
                                  std::get<1>(instance.param).name;
                         });

TEST(DeviceCollectives, TakeEveryDtype) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool}) {
      const at::Tensor host = values_of(communicator.rank(), dtype);
      const at::Tensor on_device = host.to(device);
      const ReduceOp op = dtype == at::kBool ? ReduceOp::max : ReduceOp::sum;
      communicator.all_reduce(host, op).wait();
      communicator.all_reduce(on_device, op).wait();
      EXPECT_TRUE(at::equal(on_device.cpu(), host)) << dtype;
    }
    const at::Tensor empty = at::empty({0}, at::TensorOptions(device));
    communicator.all_reduce(empty).wait();
    communicator.all_gather(empty, empty).wait();
  });
}

// wait() makes the stream wait that is current where it is called.
TEST(DeviceCollectives, ResultIsReadyOnTheStreamThatWaits) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor x = at::ones({elements}, at::TensorOptions(device));
    const SlowKernels slow(2000);
    const Work work = communicator.all_reduce(x);
    at::Tensor result;
    {
      const c10::StreamGuard guard(simulated::pool_stream(device.index()));
      work.wait();
      result = x.add(1);
      work.wait();  // once more
    }
    simulated::wait_for_device(device.index(), "the test reads");
    EXPECT_EQ(result.sum().item<double>(), 3.0 * elements);
  });
}

// The library holds the memory of tensors and of dropped results until the device no longer uses it.
TEST(DeviceCollectives, MemoryOfDroppedTensorsIsNotReusedTooEarly) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const auto options = at::TensorOptions(device);
    for (int turn = 0; turn < 5; ++turn) {
      {
        const SlowKernels slow(20000);
        communicator.all_reduce(at::ones({elements}, options));
        communicator.barrier().wait();  // the copy back to the dropped tensor is in flight
      }
      const at::Tensor fresh = at::full({elements}, 7.0, options);
      simulated::wait_for_device(device.index(), "the test reads");
      EXPECT_TRUE(at::equal(fresh.cpu(), at::full({elements}, 7.0F)));
      communicator.barrier().wait();
    }
  });
}

TEST(DeviceCollectives, KeepAutogradAndVersionsAsOnTheHost) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor x = at::ones({4}, at::TensorOptions(device)).requires_grad_();
    const auto version = x._version();
    communicator.all_reduce(x).wait();
    EXPECT_GT(x._version(), version);
    EXPECT_TRUE(x.is_leaf() && x.requires_grad());
    EXPECT_EQ(x.sum().item<double>(), 8);
  });
}

template <typename T, typename Step>
std::string message_of(const Step& step) {
  try {
    step();
  } catch (const T& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "nothing was thrown";
}

TEST(DeviceCollectives, BadTensorsAreRefusedBeforeAnythingIsSent) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor host = at::ones({4});
    const at::Tensor on_device = host.to(device);
    const auto error_of = [&](const at::Tensor& output, const at::Tensor& input) {
      return message_of<UsageError>([&] { communicator.all_gather(output, input); });
    };
    const std::string name = device.str();
    EXPECT_EQ(error_of(at::ones({8}), on_device),
              "all_gather: the tensors of the call are on cpu and on " + name + "; all of them must be on one device.");
    EXPECT_EQ(error_of(host.to(at::kMeta), host.to(at::kMeta)),
              "all_gather: the tensor is on the meta device and holds no values.");
    const at::Tensor elsewhere = host.to(at::Device(simulated::type, 3));
    EXPECT_EQ(message_of<UsageError>([&] {
                communicator.all_to_all_v({host, host.clone()}, {elsewhere, elsewhere});
              }),
              "all_to_all_v: the tensors of the call are on " + elsewhere.device().str() +
                  " and on cpu; all of them must be on one device.");
    communicator.all_reduce(on_device).wait();  // the communicator stays usable
    EXPECT_EQ(on_device.sum().item<double>(), 8);
  });
}

TEST(DeviceCollectives, DifferentCallsAreAMismatchOnAllRanks) {
  run_simulated_ranks({.c10d_backend = false}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor x = at::ones({4 + communicator.rank()}, at::TensorOptions(device));
    const auto text = message_of<MismatchError>([&] { communicator.all_reduce(x).wait(); });
    EXPECT_NE(text.find("rank 0 calls all_reduce(float [4] on sim"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 calls all_reduce(float [5] on sim"), std::string::npos) << text;
    // One rank's tensor is on the host.
    const at::Tensor y = communicator.rank() == 0 ? at::ones({4}) : at::ones({4}, at::TensorOptions(device));
    const auto other = message_of<MismatchError>([&] { communicator.all_reduce(y).wait(); });
    EXPECT_NE(other.find("rank 0 calls all_reduce(float [4], sum)"), std::string::npos) << other;
  });
}

TEST(DeviceCollectives, AnAbsentRankIsNamed) {
  std::promise<void> failed;
  run_simulated_ranks({.c10d_backend = false, .timeout = std::chrono::seconds(1)},
                      [&](const Communicator& communicator, at::Device device) {
                        if (communicator.rank() == 1) return failed.get_future().wait();
                        const at::Tensor x = at::ones({elements}, at::TensorOptions(device));
                        try {
                          communicator.all_reduce(x).wait();
                          ADD_FAILURE() << "nothing was thrown";
                        } catch (const TimeoutError& error) {
                          EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
                        } catch (const std::exception& error) {
                          ADD_FAILURE() << error.what();
                        }
                        failed.set_value();
                        EXPECT_EQ(x.sum().item<double>(), elements);
                      });
}

// A device that does not complete its work is an error on all ranks, which names the rank.
TEST(DeviceCollectives, AStoppedDeviceIsNamed) {
  std::promise<void> stopped;
  const std::shared_future<void> resumes = stopped.get_future().share();
  run_simulated_ranks({.c10d_backend = false, .timeout = std::chrono::seconds(1)},
                      [&](const Communicator& communicator, at::Device device) {
                        const at::Tensor x = at::ones({elements}, at::TensorOptions(device));
                        if (communicator.rank() == 1) {
                          simulated::launch(simulated::current_stream(device.index()), [resumes] { resumes.wait(); });
                        }
                        try {
                          communicator.all_reduce(x).wait();
                          ADD_FAILURE() << "nothing was thrown";
                        } catch (const PeerError& error) {
                          EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
                        }
                        EXPECT_THROW(communicator.all_reduce(x).wait(), Error);
                      });
  stopped.set_value();
  simulated::wait_for_device(1, "the end of the test");
}

}  // namespace
}  // namespace tutti::device_collectives_test
