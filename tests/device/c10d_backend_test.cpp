// Ranks: 2 and 3 as threads, each with a simulated device and the simulated NCCL.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <mutex>
#include <thread>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/forwarding_backend.h"
#include "comm/backend/topology.h"
#include "comm/device/backend.h"
#include "comm/operation_queue.h"
#include "device/side_stream.h"
#include "flight/rank_record.h"
#include "flight/recorder.h"
#include "support/simulated_device/ranks.h"
#include "support/tcp_transports.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/tutti.h"

namespace tutti::test::c10d_backend_test {
namespace {

using comm::Operation;
using namespace std::chrono_literals;

/// Runs `body` once per rank, with a backend whose collectives take tensors on the rank's device.
void run_backend_ranks(int size, const std::function<void(comm::Backend&, at::Device)>& body) {
  const auto transports = make_tcp_transports(size);
  const auto nccl = simulated_nccl();
  run_thread_ranks(size, [&](const Communicator& communicator) {
    const int rank = communicator.rank();
    simulated::set_current_device(rank);
    auto host = std::make_shared<comm::P2pBackend>(transports[static_cast<std::size_t>(rank)],
                                                   comm::make_topology(std::vector<int>(transports.size()), rank));
    const auto backend = comm::make_device_backend(host, nccl, "job");
    body(*backend, at::Device(simulated::type, static_cast<at::DeviceIndex>(rank)));
    communicator.barrier().wait();
  });
}

Operation operation(std::uint64_t number) {
  return {.number = number, .op_name = "collective", .name = "", .timeout = std::chrono::seconds(20)};
}

void host_barrier(comm::Backend& backend, std::uint64_t number) {
  const std::byte unused{};
  (void)backend.bootstrap_all_gather(operation(number), std::span(&unused, 1));
}

/// The tensor of `rank`, with elements that differ from rank to rank.
at::Tensor values(int rank, std::int64_t length, at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(1 + rank, 1 + rank + length, at::kLong).remainder(5);
  return dtype == at::kBool ? numbers.gt(2) : numbers.to(dtype);
}

at::Tensor reduced_on_host(int size, std::int64_t length, at::ScalarType dtype, ReduceOp op) {
  at::Tensor result = values(0, length, dtype);
  for (int rank = 1; rank < size; ++rank) {
    const at::Tensor part = values(rank, length, dtype);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::mean:
        result = at::add(result, part);
        break;
      case ReduceOp::min:
        result = at::minimum(result, part);
        break;
      case ReduceOp::max:
        result = at::maximum(result, part);
        break;
      case ReduceOp::product:
        result = at::mul(result, part);
        break;
      case ReduceOp::bit_and:
        result = at::bitwise_and(result, part);
        break;
      case ReduceOp::bit_or:
        result = at::bitwise_or(result, part);
        break;
      case ReduceOp::bit_xor:
        result = at::bitwise_xor(result, part);
        break;
    }
  }
  return op == ReduceOp::mean ? result.div(size) : result;
}

const std::vector<std::pair<at::ScalarType, ReduceOp>> reductions{
    {at::kFloat, ReduceOp::sum},    {at::kFloat, ReduceOp::mean}, {at::kDouble, ReduceOp::min},
    {at::kHalf, ReduceOp::max},     {at::kLong, ReduceOp::sum},   {at::kInt, ReduceOp::product},
    {at::kByte, ReduceOp::bit_and}, {at::kInt, ReduceOp::bit_or}, {at::kLong, ReduceOp::bit_xor},
    {at::kShort, ReduceOp::sum},    {at::kBool, ReduceOp::max},   {at::kComplexFloat, ReduceOp::sum}};

TEST(C10dBackend, ReducesEveryDtypeWithEveryOperation) {
  for (const int size : {2, 3}) {
    run_backend_ranks(size, [size](comm::Backend& backend, at::Device device) {
      std::uint64_t number = 0;
      for (const auto& [dtype, op] : reductions) {
        const at::Tensor tensor = values(backend.rank(), 6, dtype).to(device);
        backend.all_reduce(operation(++number), tensor, op);
        EXPECT_TRUE(at::equal(tensor.cpu(), reduced_on_host(size, 6, dtype, op))) << dtype;

        const at::Tensor whole = values(backend.rank(), 2 * size, dtype).to(device);
        const at::Tensor part = at::empty({2}, whole.options());
        backend.reduce_scatter(operation(++number), part, whole, op);
        const at::Tensor all = reduced_on_host(size, 2 * size, dtype, op);
        EXPECT_TRUE(at::equal(part.cpu(), all.narrow(0, 2 * backend.rank(), 2))) << dtype;
      }
    });
  }
}

TEST(C10dBackend, MovesEveryDtype) {
  for (const int size : {2, 3}) {
    run_backend_ranks(size, [size](comm::Backend& backend, at::Device device) {
      const int rank = backend.rank();
      std::uint64_t number = 0;
      for (const auto dtype : {at::kFloat, at::kBool, at::kShort, at::kComplexFloat, at::kBFloat16}) {
        const at::Tensor input = values(rank, 4, dtype).to(device);
        const at::Tensor gathered = at::empty({size, 4}, input.options());
        backend.all_gather(operation(++number), gathered, input);
        for (int of = 0; of < size; ++of) EXPECT_TRUE(at::equal(gathered.cpu()[of], values(of, 4, dtype)));

        backend.broadcast(operation(++number), input, size - 1);
        EXPECT_TRUE(at::equal(input.cpu(), values(size - 1, 4, dtype)));

        const at::Tensor sent = values(rank, 2 * size, dtype).to(device);
        const at::Tensor received = at::empty_like(sent);
        backend.all_to_all(operation(++number), received, sent);
        for (int of = 0; of < size; ++of) {
          EXPECT_TRUE(
              at::equal(received.cpu().narrow(0, 2 * of, 2), values(of, 2 * size, dtype).narrow(0, 2 * rank, 2)));
        }
      }
      // Rank r sends r + 1 elements to rank 0, and none to others.
      std::vector<at::Tensor> inputs;
      std::vector<at::Tensor> outputs;
      for (int peer = 0; peer < size; ++peer) {
        inputs.push_back(at::full({peer == 0 ? rank + 1 : 0}, rank, at::TensorOptions(at::kInt).device(device)));
        outputs.push_back(at::zeros({rank == 0 ? peer + 1 : 0}, at::TensorOptions(at::kInt).device(device)));
      }
      backend.all_to_all_v(operation(++number), outputs, inputs, 4 * static_cast<std::size_t>(size));
      for (int peer = 0; rank == 0 && peer < size; ++peer) {
        EXPECT_TRUE(at::equal(outputs[static_cast<std::size_t>(peer)].cpu(), at::full({peer + 1}, peer, at::kInt)));
      }
    });
  }
}

TEST(C10dBackend, CollectivesRunInTheOrderOfTheCurrentStreamWithoutAWaitOfTheHost) {
  run_backend_ranks(2, [](comm::Backend& backend, at::Device device) {
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor tensor = at::ones({8}, options);
    const at::Tensor gathered = at::empty({2, 8}, options);
    backend.all_reduce(operation(0), tensor, ReduceOp::sum);  // connects
    simulated::wait_for_device(device.index(), "test");
    host_barrier(backend, 1);
    if (backend.rank() == 0) simulated::reset_counts();
    host_barrier(backend, 5);
    simulated::settings().microseconds_per_kernel = 1000;
    tensor.fill_(backend.rank() + 1.0);
    backend.all_reduce(operation(2), tensor, ReduceOp::sum);
    tensor.add_(1);
    backend.all_gather(operation(3), gathered, tensor);
    gathered.mul_(2);
    EXPECT_EQ(simulated::counts().all_waits(), 0);
    host_barrier(backend, 4);
    simulated::settings().microseconds_per_kernel = 0;
    EXPECT_TRUE(at::equal(gathered.cpu(), at::full({2, 8}, 8.0)));
  });
}

TEST(C10dBackend, ASumWhereNothingWasAllocatedIsAUsageError) {
  run_simulated_ranks({}, [](const Communicator& communicator, at::Device device) {
    const at::Tensor tensor = at::ones({4}, at::TensorOptions(at::kFloat).device(device));
    EXPECT_THROW(comm::GradientCommunicator(communicator).start_all_reduce(tensor), UsageError);
    communicator.barrier().wait();
    EXPECT_FALSE(communicator.failed());
  });
}

/// One step of training on `device`. The parameters of all ranks are equal afterwards.
template <typename Model>
void train_step(Accelerator& accelerator, Model& model, Optimizer& optimizer, at::Device device, int step) {
  const auto scope = accelerator.accumulate(model);
  const Batch batch = batch_of(step * accelerator.num_processes() + accelerator.rank());
  accelerator.backward(loss_of(model->forward(batch.input.to(device)), batch.target.to(device)));
  optimizer.step();
  optimizer.zero_grad();
}

TEST(C10dBackend, ThreadsUseTheDeviceOfTheirRank) {
  run_simulated_ranks({.first_device = 1}, [](const Communicator& communicator, at::Device device) {
    Accelerator accelerator({.communicator = communicator});
    Mlp net;
    net->to(device);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    accelerator.wait_for_everyone();
    if (communicator.rank() == 0) simulated::forget_touched();
    accelerator.wait_for_everyone();
    for (int step = 0; step < 3; ++step) train_step(accelerator, model, optimizer, device, step);
  });
  EXPECT_FALSE(simulated::touched(0)) << "no rank uses device 0";
}

TEST(C10dBackend, SumsInFlightEndBeforeTheAcceleratorIsDestroyed) {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> ends(2);
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    Mlp net;
    net->to(device);
    {
      Accelerator accelerator({.communicator = communicator});
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
      train_step(accelerator, model, optimizer, device, 0);
      accelerator.wait_for_everyone();
      simulated::settings().microseconds_per_kernel = 3000;
      train_step(accelerator, model, optimizer, device, 1);
    }  // the host is far ahead of the device
    const std::lock_guard lock(mutex);
    for (const at::Tensor& parameter : net->parameters()) {
      ends[static_cast<std::size_t>(communicator.rank())].push_back(parameter.detach().cpu());
    }
  });
  simulated::settings().microseconds_per_kernel = 0;
  for (std::size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(at::equal(ends[0][i], ends[1][i]));
}

/// Clears the memory of allocate() by a kernel.
class ClearedMemory final : public comm::ForwardingBackend {
 public:
  explicit ClearedMemory(const std::shared_ptr<Backend>& host) : ForwardingBackend(host->traits(), host) {}
  at::Tensor allocate(const Operation&, std::int64_t bytes, at::Device device) override {
    return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
  }
  std::shared_ptr<Backend> split(const std::vector<int>&, const std::string&, std::chrono::milliseconds) override {
    return nullptr;
  }
};

// The queue's thread allocates behind a task of it, on another stream than the program's.
TEST(C10dBackend, TheProgramUsesMemoryAfterTheKernelsThatAllocatedIt) {
  const TemporaryFolder folder;
  const at::Device device(simulated::type, 0);
  simulated::set_current_device(0);
  const auto transports = make_tcp_transports(2);
  const auto host = std::make_shared<comm::P2pBackend>(transports[0], comm::make_topology({0, 0}, 0));
  const auto recorder = flight::Recorder::create(folder.path(), {.rank = 0, .world_size = 2});
  const auto queue = std::make_shared<comm::OperationQueue>(std::make_shared<ClearedMemory>(host), 20s, "test",
                                                            comm::Services{.recorder = recorder});
  simulated::StreamLatch latch(simulated::current_stream(0));
  const auto task = queue->submit([record = folder.path() / "rank_0.flight"] {
    while (flight::read_record(record).operations.empty()) std::this_thread::yield();  // allocate() has a number
  });
  const devices::SideStream program(device);
  program.run([&] {
    const at::Tensor memory = queue->allocate(4000, device).fill_(1);
    const auto filled = devices::StreamEvent::on_current_stream(device);
    EXPECT_FALSE(filled.wait_until(std::chrono::steady_clock::now() + 50ms, [] { return false; }))
        << "the memory was filled before it was cleared";
    latch.open();
    EXPECT_EQ(memory.sum().item<std::int64_t>(), 4000);
  });
  task->wait();
}

}  // namespace
}  // namespace tutti::test::c10d_backend_test
