// Ranks: 1, 2 and 3 as threads. All-reduces through a c10d backend.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "comm/single_backend.h"
#include "support/device_ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test::device_backend_test {
namespace {

using Strings = std::vector<std::string>;

at::Tensor summed(const Communicator& communicator, const at::Tensor& memory, double scale) {
  const auto sum = comm::GradientCommunicator(communicator).start_all_reduce(memory);
  sum->finish_reduce_scatter(scale);
  sum->wait();
  sum->block_current_stream();
  EXPECT_EQ(sum->bytes_sent(),
            2 * static_cast<std::int64_t>(memory.nbytes()) * (communicator.size() - 1) / communicator.size());
  return memory;
}

TEST(DeviceBackend, SumsThroughC10dAndEverythingElseThroughTheHost) {
  for (const int size : {1, 2, 3}) {
    run_device_ranks(size, [size](const Communicator& communicator, const BackendLog& log) {
      EXPECT_EQ(communicator.backend_name(), "sums + tcp");
      EXPECT_EQ(log.groups, Strings{});
      const at::Tensor memory = comm::GradientCommunicator(communicator).allocate(400).view(at::kFloat);
      EXPECT_TRUE(at::equal(memory, at::zeros({100})));
      EXPECT_EQ(log.groups, Strings{"job"});
      const int connecting = log.sums;
      memory.fill_(communicator.rank() + 1);
      EXPECT_TRUE(at::equal(summed(communicator, memory, 0.5), at::full({100}, size * (size + 1) / 4.0)));
      EXPECT_EQ(log.sums, connecting + 1);

      const at::Tensor ranks = at::full({3}, communicator.rank());
      communicator.all_reduce(ranks, ReduceOp::max).wait();
      EXPECT_TRUE(at::equal(ranks, at::full({3}, size - 1)));
      EXPECT_EQ(communicator.all_gather_object(std::to_string(communicator.rank())).back(), std::to_string(size - 1));
      EXPECT_EQ(log.sums, connecting + 1);
    });
  }
}

TEST(DeviceBackend, ADuplicateHasItsOwnC10dBackend) {
  run_device_ranks(3, [](const Communicator& communicator, const BackendLog& log) {
    const at::Tensor memory = comm::GradientCommunicator(communicator).allocate(8).view(at::kDouble);
    const Communicator other = communicator.duplicate("other");
    const Communicator idle = communicator.duplicate("idle");
    const at::Tensor other_memory = comm::GradientCommunicator(other).allocate(8).view(at::kDouble);
    EXPECT_EQ(log.groups, (Strings{"job", "job/1-other"}));
    memory.fill_(1);
    other_memory.fill_(2);
    EXPECT_EQ(summed(other, other_memory, 1).item<double>(), 6);
    EXPECT_EQ(summed(communicator, memory, 1).item<double>(), 3);

    // A group of ranks 0 and 2, without rank 1.
    const auto group = communicator.split(communicator.rank() == 1 ? -1 : 0);
    if (!group) return;
    EXPECT_EQ(group->backend_name(), "sums + tcp");
  });
}

TEST(DeviceBackend, AFailureOnTheHostAbortsTheC10dBackend) {
  run_device_ranks(2, [](const Communicator& communicator, const BackendLog& log) {
    const at::Tensor memory = comm::GradientCommunicator(communicator).allocate(8).view(at::kDouble);
    const auto sum = comm::GradientCommunicator(communicator).start_all_reduce(memory);
    if (communicator.rank() == 1) return;  // aborts the all-reduce that it has started
    EXPECT_THROW(communicator.barrier().wait(), PeerError);
    EXPECT_EQ(log.aborts, 1);
    EXPECT_TRUE(communicator.failed());
    EXPECT_THROW(sum->finish_reduce_scatter(1), PeerError);
  });
}

TEST(DeviceBackend, ABackendThatCannotConnectIsAPeerErrorThatSaysWhy) {
  auto host = comm::make_single_backend();
  C10dBackendFactory broken{.name = "broken",
                            .device = at::kCPU,
                            .make = [](const auto&, int, int, c10::Device) -> c10::intrusive_ptr<c10d::Backend> {
                              throw std::runtime_error("two ranks on one device");
                            }};
  const auto communicator = make_communicator(comm::make_device_backend(host, std::move(broken), "job"), {}, "job");
  try {
    comm::GradientCommunicator(communicator).allocate(8);
    FAIL() << "no error";
  } catch (const PeerError& error) {
    EXPECT_STREQ(
        error.what(),
        "Connecting over broken failed on rank 0, cpu: two ranks on one device. The backend staged does without "
        "it.");
  }
}

TEST(DeviceBackend, ASumBeforeTheFirstAllocationIsRefusedAndLeavesTheCommunicatorUsable) {
  run_device_ranks(2, [](const Communicator& communicator, const BackendLog&) {
    EXPECT_THROW(comm::GradientCommunicator(communicator).start_all_reduce(at::ones({2})), UsageError);
    const at::Tensor memory = comm::GradientCommunicator(communicator).allocate(8).view(at::kDouble).fill_(1);
    EXPECT_EQ(summed(communicator, memory, 1).item<double>(), 2);
  });
}

TEST(Allocate, RefusesADeviceThatTheBackendDoesNotSupport) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    EXPECT_FALSE(comm::GradientCommunicator(communicator).supports_device(at::kMeta));
    EXPECT_THROW(comm::GradientCommunicator(communicator).allocate(8, at::kMeta), UsageError);
    EXPECT_THROW(comm::GradientCommunicator(communicator).start_all_reduce(at::empty({2}, at::kMeta)), UsageError);
  });
  EXPECT_TRUE(comm::GradientCommunicator(Communicator()).allocate(8, at::kMeta).is_meta());
}

}  // namespace
}  // namespace tutti::test::device_backend_test
