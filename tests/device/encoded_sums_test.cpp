// Ranks: 4 and 6 as threads on two nodes, each with a simulated device. Sums by a c10d backend, with a gradient codec
// between nodes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::encoded_sums_test {
namespace {

using comm::GradientCommunicator;
using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;

constexpr std::int64_t elements = 10001;  // no multiple of the ranks of a node

at::Tensor gradients_of(int rank) {
  return at::randn({elements}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank) + 1));
}

at::Tensor mean_of_all(int ranks) {
  at::Tensor sum = at::zeros({elements}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum.add_(gradients_of(rank));
  return sum.div_(ranks).to(at::kFloat);
}

/// Counts the elements that this process encodes.
class CountingCodec final : public WireCodec {
 public:
  const std::string& name() const override { return inner_->name(); }
  std::size_t encoded_bytes(std::size_t count) const override { return inner_->encoded_bytes(count); }
  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    encoded_ += values.size();
    inner_->encode(values, bytes);
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    inner_->decode(bytes, values);
  }
  std::size_t encoded() const { return encoded_; }

 private:
  std::shared_ptr<const WireCodec> inner_ = fp16_codec();
  mutable std::atomic<std::size_t> encoded_ = 0;
};

TEST(EncodedSums, ShardsAreEncodedBetweenNodesOnly) {
  for (const int ranks : {4, 6}) {
    const auto codec = std::make_shared<CountingCodec>();
    test::simulated::settings().devices = ranks;
    run_simulated_ranks({.size = ranks, .num_nodes = 2}, [&](const Communicator& communicator, at::Device device) {
      const GradientCommunicator gradients(communicator);
      const at::Tensor memory = gradients.allocate(4 * elements, device).view(at::kFloat);
      const at::Tensor expected = mean_of_all(ranks);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor source = gradients_of(communicator.rank()).to(device);
        at::Tensor mean;
        const SlowKernels slow(500);
        const auto waits = waits_during(communicator, [&] {
          memory.copy_(source);
          const auto sum = gradients.queue_all_reduce(memory, codec, {.scale = [&] { return 1.0 / ranks; }});
          sum->complete().wait();
          sum->block_current_stream();
          mean = memory.clone();
        });
        if (step > 0) {
          EXPECT_EQ(waits, 0) << "the first sum connects the groups";
        }
        EXPECT_TRUE(at::allclose(mean.cpu(), expected, 2e-3, 2e-3));
        const at::Tensor all = at::empty({ranks, elements});
        communicator.all_gather(all, mean.cpu()).wait();
        for (const at::Tensor& other : all.unbind()) EXPECT_TRUE(at::equal(other, mean.cpu()));
      }
    });
    // In each of 3 steps each node encodes about as many values as the tensor has, whatever its number of ranks: half
    // of them as contributions, half as results. Without the sums inside nodes it would be as many for each rank.
    EXPECT_GE(codec->encoded(), 3 * static_cast<std::size_t>(elements));
    EXPECT_LE(codec->encoded(), 3 * 3 * static_cast<std::size_t>(elements));
  }
}

TEST(EncodedSums, WithoutACodecTheBackendOfTheDeviceSums) {
  run_simulated_ranks({.size = 4, .num_nodes = 2}, [](const Communicator& communicator, at::Device device) {
    const GradientCommunicator gradients(communicator);
    const at::Tensor memory = gradients.allocate(4 * elements, device).view(at::kFloat).fill_(1);
    const auto sum = gradients.queue_all_reduce(memory, nullptr, {.scale = [] { return 1.0; }});
    sum->complete().wait();
    sum->block_current_stream();
    EXPECT_EQ(memory.sum().item<double>(), 4.0 * elements);
    EXPECT_FALSE(gradients.sums_in_fixed_order(device));
  });
}

// The first sum connects the groups of the nodes. The ranks of the other node wait in the sum.
TEST(EncodedSums, AGroupThatCannotConnectEndsTheSumOnAllRanks) {
  auto factory = test::simulated_nccl();
  factory.make = [make = factory.make](const std::string& group, int rank, int size, c10::Device on) {
    if (group == "job/encoded_node0/reduce_scatter" && rank == 1) throw std::runtime_error("out of memory");
    return make(group, rank, size, on);
  };
  const auto body = [](const Communicator& communicator) {
    test::simulated::set_current_device(communicator.rank());
    const at::Device device(test::simulated::type, static_cast<at::DeviceIndex>(communicator.rank()));
    const GradientCommunicator gradients(communicator);
    const at::Tensor memory = gradients.allocate(4 * elements, device).view(at::kFloat).fill_(1);
    const auto sum = gradients.queue_all_reduce(memory, fp16_codec(), {.scale = [] { return 1.0; }});
    try {
      sum->complete().wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      ADD_FAILURE() << error.what();
    } catch (const PeerError&) {
      EXPECT_TRUE(communicator.failed());
    }
  };
  test::simulated::settings().devices = 4;
  run_thread_ranks(4, body, {.device_backend = factory, .timeout = std::chrono::seconds(20)}, /*num_nodes=*/2);
}

}  // namespace
}  // namespace tutti::encoded_sums_test
