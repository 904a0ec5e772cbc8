// Ranks: 1, and 2 threads.
#include "comm/operation_queue.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <new>
#include <thread>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/forwarding_backend.h"
#include "comm/backend/topology.h"
#include "comm/single_backend.h"
#include "flight/rank_record.h"
#include "flight/recorder.h"
#include "support/tcp_transports.h"
#include "support/temporary_folder.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::comm::operation_queue_test {
namespace {

using namespace std::chrono_literals;

/// fp32 values as they are. decode() throws `failure` unless that is null.
class FailingCodec final : public WireCodec {
 public:
  explicit FailingCodec(std::exception_ptr failure) : failure_(std::move(failure)) {}
  const std::string& name() const override { return name_; }
  std::size_t encoded_bytes(std::size_t elements) const override { return elements * sizeof(float); }
  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    std::ranges::copy(std::as_bytes(values), bytes.begin());
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    if (failure_) std::rethrow_exception(failure_);
    std::ranges::copy(bytes, std::as_writable_bytes(values).begin());
  }

 private:
  const std::string name_ = "failing";
  const std::exception_ptr failure_;
};

/// Throws in one of its gathers, or in none.
class FailingGather final : public ForwardingBackend {
 public:
  enum class Fails { never, small, other };
  FailingGather(std::shared_ptr<Backend> inner, Fails fails)
      : ForwardingBackend(inner->traits(), inner), fails_(fails) {}
  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                           std::span<const std::byte> input) override {
    if (fails_ == Fails::small) throw std::bad_alloc();
    return inner().start_small_all_gather(operation, input);
  }
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    if (fails_ == Fails::other) throw std::bad_alloc();
    inner().all_gather(operation, output, input);
  }
  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override {
    return inner().split(members, name, timeout);
  }

 private:
  const Fails fails_;
};

/// Runs `operation`, in which rank 1 throws std::bad_alloc, or PeerError that names itself: rank 0 gets a PeerError
/// that names rank 1. The next one fails on both.
void check_exception_of_rank_one(const std::function<void(OperationQueue& queue, int rank)>& operation,
                                 FailingGather::Fails fails = FailingGather::Fails::never) {
  auto transports = test::make_tcp_transports(2);
  const auto run = [&](int rank) {
    auto backend = std::make_shared<P2pBackend>(std::move(transports[static_cast<std::size_t>(rank)]),
                                                make_topology({0, 0}, rank));
    const auto failing =
        std::make_shared<FailingGather>(std::move(backend), rank == 1 ? fails : FailingGather::Fails::never);
    const auto queue = std::make_shared<OperationQueue>(failing, 10s, "test", Services{});
    try {
      operation(*queue, rank);
      ADD_FAILURE() << "rank " << rank << ": nothing was thrown";
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(rank, 1);
    } catch (const TimeoutError& error) {
      ADD_FAILURE() << error.what();
    } catch (const PeerError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
    }
    EXPECT_THROW(operation(*queue, rank), PeerError);
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
}

// The other rank waits in the call. Without an error it would match the next call of the rank that threw.
TEST(OperationQueue, AnExceptionInACallOfOneRankEndsItOnAll) {
  check_exception_of_rank_one([](OperationQueue& queue, int rank) {
    const auto sum = [&](const Operation& operation, const auto&) {
      if (rank == 1) throw std::bad_alloc();
      queue.backend().all_reduce(operation, at::ones({1000}), ReduceOp::sum);
    };
    queue.call("sum", "", {}, sum)->wait();
  });
}

TEST(OperationQueue, AnExceptionInAGradientSumOfOneRankEndsItOnAll) {
  for (const auto& failure :
       {std::make_exception_ptr(std::bad_alloc()), std::make_exception_ptr(PeerError("the group of the node", {1}))}) {
    check_exception_of_rank_one([&](OperationQueue& queue, int rank) {
      const auto codec = std::make_shared<FailingCodec>(rank == 1 ? failure : nullptr);
      const auto sum = queue.start_all_reduce(at::ones({1000}), codec);
      try {
        sum->finish_reduce_scatter(1.0);
      } catch (const std::exception&) {
        EXPECT_TRUE(queue.failed());
        EXPECT_THROW(sum->wait(), PeerError);  // GradientSync has queued it
        throw;
      }
      sum->wait();
    });
  }
}

TEST(OperationQueue, AnExceptionInASparseGradientOfOneRankEndsItOnAll) {
  check_exception_of_rank_one(
      [](OperationQueue& queue, int rank) {
        const auto gathered = queue.start_all_gather_v(std::vector<std::byte>(static_cast<std::size_t>(rank) + 1));
        gathered->wait();
      },
      FailingGather::Fails::other);
}

TEST(OperationQueue, AnExceptionAtTheStartOfACallOfOneRankEndsItOnAll) {
  check_exception_of_rank_one(
      [](OperationQueue& queue, int) { queue.call("sum", "", {}, [](const Operation&, const auto&) {})->wait(); },
      FailingGather::Fails::small);
}

TEST(OperationQueue, AnExceptionInAGroupOfOneRankLeavesItUsable) {
  const Communicator communicator;
  EXPECT_THROW(GradientCommunicator(communicator).allocate(std::int64_t{1} << 60), std::exception);
  communicator.barrier().wait();
}

/// The first step throws, so the second one must not run.
class FailingSum final : public PendingAllReduce {
 public:
  void finish_reduce_scatter(double) override { throw std::bad_alloc(); }
  void wait() override { ADD_FAILURE() << "the second step ran"; }
  void block_current_stream() const override {}
  std::int64_t bytes_sent() const override { return 0; }
};

class FailingSums final : public ForwardingBackend {
 public:
  explicit FailingSums(const std::shared_ptr<Backend>& inner) : ForwardingBackend(inner->traits(), inner) {}
  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation&, const at::Tensor&,
                                                     const std::shared_ptr<const WireCodec>&) override {
    return std::make_unique<FailingSum>();
  }
  std::shared_ptr<Backend> split(const std::vector<int>&, const std::string&, std::chrono::milliseconds) override {
    return nullptr;
  }
};

TEST(OperationQueue, AnExceptionInAGradientSumOfOneRankAloneEndsTheSum) {
  const auto queue =
      std::make_shared<OperationQueue>(std::make_shared<FailingSums>(make_single_backend()), 10s, "test", Services{});
  const auto sum = queue->start_all_reduce(at::ones({10}), nullptr);
  EXPECT_THROW(sum->finish_reduce_scatter(1.0), std::bad_alloc);
  EXPECT_THROW(sum->wait(), std::bad_alloc);
  EXPECT_FALSE(queue->failed());
}

// A task of the queue's thread makes a call while another thread waits in allocate(), which is queued behind the task.
TEST(OperationQueue, AllocateBehindATaskThatMakesACall) {
  const test::TemporaryFolder folder;
  auto transports = test::make_tcp_transports(2);
  const auto run = [&](int rank) {
    auto backend = std::make_shared<P2pBackend>(std::move(transports[static_cast<std::size_t>(rank)]),
                                                make_topology({0, 0}, rank));
    const auto recorder = flight::Recorder::create(folder.path(), {.rank = rank, .world_size = 2});
    const auto queue =
        std::make_shared<OperationQueue>(std::move(backend), 10s, "test", Services{.recorder = recorder});
    const auto record = folder.path() / ("rank_" + std::to_string(rank) + ".flight");
    const auto task = queue->submit([&] {
      while (flight::read_record(record).operations.empty()) std::this_thread::yield();  // allocate() has a number
      queue->call("sum", "", {}, [](const Operation&, const auto&) {})->wait();
    });
    EXPECT_EQ(queue->allocate(64, at::kCPU).numel(), 64);
    task->wait();
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
}

}  // namespace
}  // namespace tutti::comm::operation_queue_test
