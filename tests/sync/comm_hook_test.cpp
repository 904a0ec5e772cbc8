// Ranks: 2 and 3 as threads, on nodes of their own and on one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/training.h"
#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::comm_hook_test {
namespace {

struct Trained {
  std::vector<at::Tensor> parameters;
  std::int64_t bytes = 0;
};

Trained train(const Communicator& communicator, std::shared_ptr<const WireCodec> hook) {
  torch::nn::Sequential net(torch::nn::Linear(40, 300), torch::nn::Linear(300, 10));
  test::fill(*net, 1);
  DistributedDataParallel ddp(net, communicator, {.comm_hook = std::move(hook)});
  torch::optim::SGD sgd(net->parameters(), 0.05);
  for (int step = 0; step < 10; ++step) {
    const auto seed = static_cast<std::uint64_t>(100 * step + communicator.rank());
    net->forward(test::random_tensor({8, 40}, seed)).square().mean().backward();
    sgd.step();
    sgd.zero_grad();
  }
  return {.parameters = net->parameters(), .bytes = ddp.stats().bytes_sent};
}

double largest_difference(const Trained& a, const Trained& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    largest = std::max(largest, (a.parameters[i] - b.parameters[i]).abs().max().item<double>());
  }
  return largest;
}

TEST(CommHook, HalvesTheBytesBetweenNodesAndKeepsReplicasEqual) {
  for (const int size : {2, 3}) {
    run_thread_ranks(
        size,
        [](const Communicator& communicator) {
          const Trained plain = train(communicator.duplicate("plain"), nullptr);
          for (const auto& hook : {fp16_codec(), bf16_codec()}) {
            const Trained narrow = train(communicator.duplicate(hook->name()), hook);
            EXPECT_EQ(2 * narrow.bytes, plain.bytes) << hook->name();
            EXPECT_GT(largest_difference(narrow, plain), 0) << hook->name() << " changed nothing";
            EXPECT_LT(largest_difference(narrow, plain), 1e-2) << hook->name();
            for (const at::Tensor& parameter : narrow.parameters) {
              const at::Tensor first = parameter.detach().clone();
              communicator.broadcast(first).wait();
              EXPECT_TRUE(at::equal(first, parameter)) << hook->name() << ": replicas drift";
            }
          }
        },
        {}, size);
  }
}

TEST(CommHook, ChangesNothingWhereNothingTravels) {
  run_thread_ranks(2,
                   [](const Communicator& communicator) {
                     const Trained plain = train(communicator.duplicate("plain"), nullptr);
                     const Trained narrow = train(communicator.duplicate("narrow"), bf16_codec());
                     EXPECT_EQ(largest_difference(narrow, plain), 0);
                     EXPECT_EQ(narrow.bytes, plain.bytes);
                   },
                   {.engine = "shared_memory"});
}

TEST(CommHook, MustBeTheSameOnAllRanks) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    torch::nn::Linear net(2, 2);
    const auto hook = communicator.rank() == 0 ? fp16_codec() : bf16_codec();
    EXPECT_THROW(DistributedDataParallel(net, communicator, {.comm_hook = hook}), Divergence);
  });
}

}  // namespace
}  // namespace tutti::comm_hook_test
