// Ranks: 2 and 3 as threads and 3 as processes, one per node and all on one node.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "support/ranks.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::gradient_codec_test {
namespace {

constexpr double rate = 0.05;

struct Trained {
  std::vector<at::Tensor> parameters;
  std::int64_t bytes = 0;
  double largest_way = 0;  ///< largest sum of one element's step lengths
};

Trained train(const Communicator& communicator, std::shared_ptr<const WireCodec> hook) {
  torch::nn::Sequential net(torch::nn::Linear(40, 300), torch::nn::Linear(300, 10));
  test::fill(*net, 1);
  DistributedDataParallel ddp(net, communicator, {.gradient_codec = std::move(hook)});
  torch::optim::SGD sgd(net->parameters(), rate);
  std::vector<at::Tensor> ways;
  for (const at::Tensor& parameter : net->parameters()) ways.push_back(at::zeros_like(parameter));
  for (int step = 0; step < 10; ++step) {
    const auto seed = static_cast<std::uint64_t>(100 * step + communicator.rank());
    net->forward(test::random_tensor({8, 40}, seed)).square().mean().backward();
    for (std::size_t i = 0; i < ways.size(); ++i) ways[i] += net->parameters()[i].grad().abs() * rate;
    sgd.step();
    sgd.zero_grad();
  }
  Trained trained{.parameters = net->parameters(), .bytes = ddp.stats().bytes_sent};
  for (const at::Tensor& way : ways) trained.largest_way = std::max(trained.largest_way, way.max().item<double>());
  return trained;
}

double largest_difference(const Trained& a, const Trained& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    largest = std::max(largest, (a.parameters[i] - b.parameters[i]).abs().max().item<double>());
  }
  return largest;
}

// Each rank is a node of its own.
void check_between_nodes(const Communicator& communicator) {
  const Trained plain = train(communicator.duplicate("plain"), nullptr);
  struct Row {
    std::shared_ptr<const WireCodec> hook;
    int digits;
    double of_bytes;
  };
  for (const auto& [hook, digits, of_bytes] :
       {Row{fp16_codec(), 11, 0.5}, Row{bf16_codec(), 8, 0.5}, Row{int8_codec(), 6, 0.254}}) {
    const Trained narrow = train(communicator.duplicate(hook->name()), hook);
    const auto bytes = static_cast<double>(plain.bytes);
    // fp16 and int8 also send scales.
    EXPECT_NEAR(static_cast<double>(narrow.bytes), of_bytes * bytes, bytes / 2000) << hook->name();
    EXPECT_GT(largest_difference(narrow, plain), 0) << hook->name() << " changed nothing";
    // Each rank's part of a step and the step itself are rounded. The effects on later steps are of the same size.
    EXPECT_LT(largest_difference(narrow, plain), 2 * plain.largest_way * std::pow(2.0, -digits)) << hook->name();
    for (const at::Tensor& parameter : narrow.parameters) {
      const at::Tensor first = parameter.detach().clone();
      communicator.broadcast(first).wait();
      EXPECT_TRUE(at::equal(first, parameter)) << hook->name() << ": replicas drift";
    }
  }
}
TEST(GradientCodec, SendsFewerBytesBetweenNodesAndKeepsReplicasEqual) {
  for (const int size : {2, 3}) run_thread_ranks(size, check_between_nodes, {}, size);
}

void check_inside_a_node(const Communicator& communicator) {
  const Trained plain = train(communicator.duplicate("plain"), nullptr);
  const Trained narrow = train(communicator.duplicate("narrow"), bf16_codec());
  EXPECT_EQ(largest_difference(narrow, plain), 0);
  EXPECT_EQ(narrow.bytes, plain.bytes);
}
TEST(GradientCodec, ChangesNothingWhereNothingIsSent) {
  run_thread_ranks(2, check_inside_a_node, {.backend = "shared_memory"});
}

void check_agreement(const Communicator& communicator) {
  torch::nn::Linear net(2, 2);
  const auto hook = communicator.rank() == 0 ? fp16_codec() : bf16_codec();
  EXPECT_THROW(DistributedDataParallel(net, communicator, {.gradient_codec = hook}), MismatchError);
}
TEST(GradientCodec, MustBeTheSameOnAllRanks) {
  run_thread_ranks(2, check_agreement);
}

const test::RankProgram over_tcp_and_memory("gradient_codec_over_tcp_and_memory", [] {
  const auto apart = Communicator::connect(test::on_nodes(3));
  EXPECT_EQ(apart.backend_name(), "tcp");
  check_between_nodes(apart);
  check_agreement(apart);
  const auto together = Communicator::connect(test::on_nodes(1));
  EXPECT_EQ(together.backend_name(), "shared memory + tcp");
  check_inside_a_node(together);
  check_agreement(together);
});
TEST(GradientCodec, HoldsOnProcessesOverTcpAndSharedMemory) {
  test::expect_success(test::run_processes(over_tcp_and_memory, 3));
}

}  // namespace
}  // namespace tutti::gradient_codec_test
