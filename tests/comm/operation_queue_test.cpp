// Ranks: 2 threads.
#include "comm/operation_queue.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <future>
#include <new>
#include <thread>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/topology.h"
#include "comm/transport/thread_transport.h"
#include "flight/rank_record.h"
#include "flight/recorder.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"

namespace tutti::comm::operation_queue_test {
namespace {

using namespace std::chrono_literals;

// The other rank waits in the call. Without an error it would match the next call of the rank that threw.
TEST(OperationQueue, AnExceptionInACallOfOneRankEndsItOnAll) {
  auto transports = make_thread_transports(2);
  const auto run = [&](int rank) {
    auto backend = std::make_shared<P2pBackend>(std::move(transports[static_cast<std::size_t>(rank)]),
                                                make_topology({0, 0}, rank), 15s);
    const auto queue = std::make_shared<OperationQueue>(std::move(backend), 10s, "test", Services{});
    const auto call = [&] {
      return queue->call("sum", "", {}, [&](const Operation& operation, const auto&) {
        if (rank == 1) throw std::bad_alloc();
        queue->backend().all_reduce(operation, at::ones({1000}), ReduceOp::sum);
      });
    };
    try {
      call()->wait();
      ADD_FAILURE() << "rank " << rank << ": nothing was thrown";
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(rank, 1);
    } catch (const TimeoutError& error) {
      ADD_FAILURE() << error.what();
    } catch (const PeerError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
    }
    EXPECT_THROW(call(), PeerError);
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
}

// A task of the queue's thread makes a call while another thread waits in allocate(), which is queued behind the task.
TEST(OperationQueue, AllocateBehindATaskThatMakesACall) {
  const test::TemporaryFolder folder;
  auto transports = make_thread_transports(2);
  const auto run = [&](int rank) {
    auto backend = std::make_shared<P2pBackend>(std::move(transports[static_cast<std::size_t>(rank)]),
                                                make_topology({0, 0}, rank), 15s);
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
