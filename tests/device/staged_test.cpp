// Ranks: 2 and 4 as threads, each with a simulated device; the 4 on two nodes. Gradient sums of device memory through
// backends of the host.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::staged_test {
namespace {

namespace simulated = test::simulated;
using comm::GradientCommunicator;
using test::run_simulated_ranks;
using test::SimulatedRanks;
using test::SlowKernels;
using test::waits_during;

constexpr std::int64_t elements = 30000;  // of all buckets
constexpr int buckets = 3;

at::Tensor gradients_of(int rank, int step, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + rank));
  return at::randn({elements}, generator).to(dtype);
}

struct Sums {
  std::shared_ptr<const WireCodec> codec = nullptr;
  at::ScalarType dtype = at::kFloat;
};

/// Memory in which buckets are summed, as a Reducer uses it.
class Buckets {
 public:
  Buckets(const Communicator& communicator, at::Device device, const Sums& sums)
      : communicator_(communicator),
        sums_(sums),
        memory_(communicator_.allocate(elements * static_cast<std::int64_t>(c10::elementSize(sums.dtype)), device)
                    .view(sums.dtype)) {}

  /// One synchronization: kernels write the gradients, each bucket is summed as soon as it is written, and a kernel
  /// uses the result.
  at::Tensor mean_of(const at::Tensor& gradients) {
    std::vector<std::shared_ptr<comm::QueuedAllReduce>> sums;
    for (std::int64_t i = 0; i < buckets; ++i) {
      const auto length = elements / buckets;
      const at::Tensor bucket = memory_.narrow(0, i * length, length);
      bucket.copy_(gradients.narrow(0, i * length, length));
      sums.push_back(communicator_.queue_all_reduce(bucket, sums_.codec, {.scale = [] { return 0.3; }}));
    }
    std::vector<Work> works;
    for (const auto& sum : sums) works.push_back(sum->complete());
    for (const Work& work : works) work.wait();
    for (const auto& sum : sums) sum->block_current_stream();
    for (const auto& sum : sums) bytes_sent_ += sum->bytes_sent();
    return memory_.clone();
  }
  std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  GradientCommunicator communicator_;
  Sums sums_;
  at::Tensor memory_;
  std::int64_t bytes_sent_ = 0;
};

void expect_the_hosts_bits(const SimulatedRanks& ranks, const Sums& sums) {
  run_simulated_ranks(ranks, [&](const Communicator& communicator, at::Device device) {
    // The host's sums run on a communicator of their own: it is not staged, and no device is involved.
    const auto gradients = [&](int step) { return gradients_of(communicator.rank(), step, sums.dtype); };
    Buckets on_host(communicator, at::kCPU, sums);
    Buckets on_device(communicator, device, sums);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor expected = on_host.mean_of(gradients(step));
      const at::Tensor source = gradients(step).to(device);
      at::Tensor mean;
      const SlowKernels slow(1000);
      EXPECT_EQ(waits_during(communicator, [&] { mean = on_device.mean_of(source); }), 0);
      EXPECT_TRUE(at::equal(mean.cpu(), expected)) << "step " << step;
    }
    EXPECT_EQ(on_device.bytes_sent(), on_host.bytes_sent());
  });
}

const std::vector<SimulatedRanks> places = {
    {.backend = "staged", .c10d_backend = false},
    {.size = 3, .backend = "staged:shared_memory", .c10d_backend = false},
    {.size = 4, .num_nodes = 2, .backend = "staged:hierarchical", .c10d_backend = false},
};

TEST(Staged, SumsHaveTheHostsBitsAndTheProgramDoesNotWait) {
  for (const auto& place : places) {
    SCOPED_TRACE(place.backend);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) expect_the_hosts_bits(place, {.dtype = dtype});
  }
}

TEST(Staged, GradientsAreEncodedBetweenNodesAsOnTheHost) {
  for (const auto& place : places) {
    SCOPED_TRACE(place.backend);
    for (const auto& codec : {fp16_codec(), bf16_codec()}) expect_the_hosts_bits(place, {.codec = codec});
  }
}

TEST(Staged, SaysWhatItIs) {
  run_simulated_ranks(places[1], [](const Communicator& communicator, at::Device device) {
    EXPECT_EQ(communicator.backend_name(), "staged + shared memory + tcp");
    const GradientCommunicator gradients(communicator);
    EXPECT_TRUE(gradients.supports_device(device));
    EXPECT_TRUE(gradients.sums_in_fixed_order(device));
    EXPECT_TRUE(gradients.sums_in_fixed_order(at::kCPU));
    EXPECT_EQ(communicator.duplicate("copy").backend_name(), communicator.backend_name());
    EXPECT_EQ(communicator.split(0)->backend_name(), communicator.backend_name());
  });
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    EXPECT_TRUE(GradientCommunicator(communicator).supports_device(device));
  });
}

// Two ranks use one device.
TEST(Staged, RanksMayShareADevice) {
  run_simulated_ranks(places[1], [](const Communicator& communicator, at::Device) {
    const at::Device shared(simulated::type, 0);
    Buckets on_host(communicator, at::kCPU, {});
    Buckets on_device(communicator, shared, {});
    const at::Tensor gradients = gradients_of(communicator.rank(), 0, at::kFloat);
    const at::Tensor expected = on_host.mean_of(gradients);
    EXPECT_TRUE(at::equal(on_device.mean_of(gradients.to(shared)).cpu(), expected));
  });
}

// A tensor that allocate() did not make is staged too, through memory of its own.
TEST(Staged, SumsAnyTensor) {
  for (const auto& place : places) {
    run_simulated_ranks(place, [](const Communicator& communicator, at::Device device) {
      const GradientCommunicator gradients(communicator);
      const at::Tensor x = at::full({elements}, 2.0, at::TensorOptions(at::kFloat).device(device));
      const auto sum = gradients.queue_all_reduce(x, nullptr, {.scale = [] { return 1.0; }});
      sum->complete().wait();
      sum->block_current_stream();
      EXPECT_EQ(x.sum().item<double>(), 2.0 * elements * communicator.size());
    });
  }
}

// Sums of host memory and of device memory on one communicator: the order of the host's sums is that of the calls.
TEST(Staged, HostAndDeviceSumsShareACommunicator) {
  for (const auto& place : places) {
    run_simulated_ranks(place, [](const Communicator& communicator, at::Device device) {
      const GradientCommunicator gradients(communicator);
      const auto bytes = elements * static_cast<std::int64_t>(sizeof(float));
      const at::Tensor on_host = gradients.allocate(bytes).view(at::kFloat);
      const at::Tensor on_device = gradients.allocate(bytes, device).view(at::kFloat);
      for (int turn = 0; turn < 10; ++turn) {
        on_host.fill_(1);
        on_device.fill_(2);
        std::vector<std::shared_ptr<comm::QueuedAllReduce>> sums;
        // The host of one rank is slow between the calls: the queue thread of the other one is ahead.
        for (const at::Tensor& tensor : {on_device, on_host}) {
          sums.push_back(gradients.queue_all_reduce(tensor, nullptr, {.scale = [] { return 1.0; }}));
          if (communicator.rank() == turn % 2) simulated::wait_for_device(device.index(), "the test delays this rank");
        }
        for (const auto& sum : sums) sum->complete().wait();
        for (const auto& sum : sums) sum->block_current_stream();
        EXPECT_EQ(on_host.sum().item<double>(), 1.0 * elements * communicator.size());
        EXPECT_EQ(on_device.sum().item<double>(), 2.0 * elements * communicator.size());
      }
    });
  }
}

TEST(Staged, AnAbsentRankIsNamedAndTheMemoryStaysUsable) {
  std::promise<void> failed;
  auto ranks = places[0];
  ranks.timeout = std::chrono::seconds(1);
  run_simulated_ranks(ranks, [&](const Communicator& communicator, at::Device device) {
    const GradientCommunicator gradients(communicator);
    const at::Tensor memory = gradients.allocate(elements, device);
    if (communicator.rank() == 1) return failed.get_future().wait();
    try {
      gradients.queue_all_reduce(memory, nullptr, {.scale = [] { return 1.0; }})->reduction().wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    failed.set_value();
    memory.zero_();
    EXPECT_EQ(memory.sum().item<std::int64_t>(), 0);
  });
}

TEST(Staged, AStoppedDeviceIsNamedOnAllRanks) {
  for (auto ranks : {places[0], places[1]}) {
    std::promise<void> stopped;
    const std::shared_future<void> resumes = stopped.get_future().share();
    ranks.timeout = std::chrono::seconds(1);
    run_simulated_ranks(ranks, [&](const Communicator& communicator, at::Device device) {
      const GradientCommunicator gradients(communicator);
      const at::Tensor memory = gradients.allocate(elements, device);
      if (communicator.rank() == 1) {
        simulated::launch(simulated::current_stream(device.index()), [resumes] { resumes.wait(); });
      }
      try {
        gradients.queue_all_reduce(memory, nullptr, {.scale = [] { return 1.0; }})->reduction().wait();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
        const std::string device_text = "device " + device.str() + " of rank 1 did not complete the work";
        if (communicator.rank() == 1) {
          EXPECT_NE(std::string(error.what()).find(device_text), std::string::npos) << error.what();
        }
      }
    });
    stopped.set_value();
    simulated::wait_for_device(1, "the end of the test");
  }
}

// The memory, the sum and the communicator are destroyed while copies are queued.
TEST(Staged, DestructionWithWorkInFlightIsSafe) {
  for (const auto& place : places) {
    const SlowKernels slow(5000);
    run_simulated_ranks(place, [](const Communicator& communicator, at::Device device) {
      const GradientCommunicator gradients(communicator);
      at::Tensor memory = gradients.allocate(elements, device);
      memory.fill_(1);
      auto sum = gradients.queue_all_reduce(memory, nullptr, {.scale = [] { return 1.0; }});
      try {
        if (communicator.rank() == 0) sum->complete().wait();
      } catch (const PeerError&) {  // expected: the other ranks abort their sums
      }
      sum.reset();
      memory.reset();
    });
    for (int device = 0; device < place.size; ++device) simulated::wait_for_device(device, "the end of the test");
  }
}

}  // namespace
}  // namespace tutti::staged_test
