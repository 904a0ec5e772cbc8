// All-reduces with a wire codec. Ranks: 2, 3 and 5 threads, one per node; 2 x 2 and 3 x 2 threads (nodes x ranks); 4
// processes on 1, 2 and 4 nodes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/ranks.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::wire_codec_test {
namespace {

constexpr std::int64_t elements = 700'001;  // more than one chunk per shard

at::Tensor sum_of(const Communicator& communicator, const at::Tensor& values,
                  const std::shared_ptr<const WireCodec>& codec, double scale, std::int64_t* bytes = nullptr) {
  const auto memory = comm::GradientCommunicator(communicator)
                          .allocate(static_cast<std::int64_t>(values.nbytes()))
                          .view(values.scalar_type());
  memory.copy_(values);
  const auto sum = comm::GradientCommunicator(communicator).start_all_reduce(memory, codec);
  sum->finish_reduce_scatter(scale);
  sum->wait();
  if (bytes != nullptr) *bytes = sum->bytes_sent();
  return memory.clone();
}

at::Tensor values_of(int rank) {
  const auto index = at::arange(elements, at::kDouble);
  return (at::remainder(index * 7919 + rank * 104729, 1009).sub(500) / 37.0).to(at::kFloat);
}

TEST(WireCodec, KeepsRepresentableAndNonFiniteValues) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const auto& codec : {fp16_codec(), bf16_codec()}) {
    const std::vector<float> values = {0, 1, -2.5, 0.0078125, infinity, -infinity, std::nanf("")};
    std::vector<std::byte> bytes(codec->encoded_bytes(values.size()));
    EXPECT_LE(bytes.size(), 2 * values.size() + 4);
    std::vector<float> decoded(values.size());
    codec->encode(values, bytes);
    codec->decode(bytes, decoded);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(decoded[i], values[i]) << codec->name();
    EXPECT_TRUE(std::isnan(decoded[6]));
  }
}

TEST(WireCodec, Fp16ScalesWithTheLargestValue) {
  const auto codec = fp16_codec();
  constexpr float smallest = std::numeric_limits<float>::denorm_min();
  for (const float one : {1.0F, 65520.0F, 1e9F, 3e38F, 1e-7F, 1e-30F, smallest, 0.0F}) {
    const std::vector<float> values = {one, -one / 3, one / 1024, 0};
    std::vector<std::byte> bytes(codec->encoded_bytes(values.size()));
    std::vector<float> decoded(values.size());
    codec->encode(values, bytes);
    codec->decode(bytes, decoded);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(decoded[i], values[i], std::abs(values[i]) / 2048) << one;
    }
  }
}

void check_rounding(const Communicator& communicator) {
  at::Tensor sum = at::zeros({elements}, at::kDouble);
  for (int rank = 0; rank < communicator.size(); ++rank) sum += values_of(rank).to(at::kDouble);
  struct Row {
    std::shared_ptr<const WireCodec> codec;
    int digits;
    double bytes;  // of an element
  };
  for (const auto& [codec, digits, bytes_each] :
       {Row{fp16_codec(), 11, 2}, Row{bf16_codec(), 8, 2}, Row{int8_codec(), 6, 1 + 4.0 / 256}}) {
    std::int64_t bytes = 0;
    const at::Tensor result = sum_of(communicator, values_of(communicator.rank()), codec, 0.25, &bytes);
    // Each contribution is rounded once, and so is the result.
    const double bound = (communicator.size() + 1) * 14 * 0.25 * std::pow(2.0, -digits);
    EXPECT_LT((result.to(at::kDouble) - sum * 0.25).abs().max().item<double>(), bound) << codec->name();
    const std::int64_t sent = 2 * elements * (communicator.size() - 1) / communicator.size();
    EXPECT_NEAR(static_cast<double>(bytes), bytes_each * static_cast<double>(sent), 0.01 * static_cast<double>(sent));
    const at::Tensor first = result.clone();
    communicator.broadcast(first).wait();
    EXPECT_TRUE(at::equal(first, result)) << "replicas drift";
  }
}
TEST(EncodedSum, IsASumOfFp32RoundedOnTheWire) {
  for (const int size : {2, 3, 5}) run_thread_ranks(size, check_rounding, {}, size);
}

void check_range(const Communicator& communicator) {
  const double scale = 1.0 / communicator.size();
  for (const float value : {60000.0F, 61440.0F * 65536}) {
    const auto result = sum_of(communicator, at::full({elements}, value, at::kFloat), fp16_codec(), scale);
    EXPECT_EQ(result.max().item<float>(), value) << communicator.size();
    EXPECT_EQ(result.min().item<float>(), value);
  }
}
TEST(EncodedSum, DoesNotOverflow) {
  for (const int size : {2, 4, 8}) run_thread_ranks(size, check_range, {}, size);
  run_thread_ranks(4, check_range, {.backend = "hierarchical"}, 2);
}

void check_doubles(const Communicator& communicator) {
  const auto values = values_of(communicator.rank()).to(at::kDouble);
  EXPECT_TRUE(at::equal(sum_of(communicator, values, bf16_codec(), 1), sum_of(communicator, values, nullptr, 1)));
}
TEST(EncodedSum, OtherDtypesAreSentAsTheyAre) {
  run_thread_ranks(2, check_doubles);
}

void check_inside_a_node(const Communicator& communicator) {
  const auto values = values_of(communicator.rank());
  EXPECT_TRUE(at::equal(sum_of(communicator, values, bf16_codec(), 1), sum_of(communicator, values, nullptr, 1)));
}
TEST(EncodedSum, NothingIsEncodedInsideANode) {
  run_thread_ranks(3, check_inside_a_node, {.backend = "shared_memory"});
}

// Two ranks per node.
void check_between_nodes(const Communicator& communicator) {
  const int nodes = communicator.topology().num_nodes;
  at::Tensor sum = at::zeros({elements}, at::kDouble);
  for (int rank = 0; rank < communicator.size(); ++rank) sum += values_of(rank).to(at::kDouble);
  std::int64_t encoded = 0;
  std::int64_t plain = 0;
  const auto result = sum_of(communicator, values_of(communicator.rank()), bf16_codec(), 1, &encoded);
  sum_of(communicator, values_of(communicator.rank()), nullptr, 1, &plain);
  EXPECT_LT((result.to(at::kDouble) - sum).abs().max().item<double>(), 0.1 * 2 * nodes * (nodes + 1));
  const at::Tensor first = result.clone();
  communicator.broadcast(first).wait();
  EXPECT_TRUE(at::equal(first, result));
  // Each rank sends half of the tensor between nodes, once as fp32 and once as bf16.
  const double inter_node_bytes = 2.0 * elements / 2 * (nodes - 1) / nodes;
  EXPECT_NEAR(static_cast<double>(plain - encoded), 2 * inter_node_bytes, 0.01 * inter_node_bytes);
}
TEST(EncodedSum, OnlyInterNodeSumsAreEncoded) {
  for (const int nodes : {2, 3}) run_thread_ranks(2 * nodes, check_between_nodes, {.backend = "hierarchical"}, nodes);
}

const test::RankProgram over_tcp_and_memory("encoded_sums_over_tcp_and_memory", [] {
  const auto one_rank_per_node = Communicator::connect(test::on_nodes(4));
  EXPECT_EQ(one_rank_per_node.backend_name(), "tcp");
  check_rounding(one_rank_per_node);
  check_range(one_rank_per_node);
  check_doubles(one_rank_per_node);
  const auto two_ranks_per_node = Communicator::connect(test::on_nodes(2));
  EXPECT_EQ(two_ranks_per_node.backend_name(), "shared memory + tcp");
  check_between_nodes(two_ranks_per_node);
  check_range(two_ranks_per_node);
  check_doubles(two_ranks_per_node);
  const auto one_node = Communicator::connect(test::on_nodes(1));
  EXPECT_EQ(one_node.backend_name(), "shared memory + tcp");
  check_inside_a_node(one_node);
});
TEST(EncodedSum, HoldsOnProcessesOverTcpAndSharedMemory) {
  test::expect_success(test::run_processes(over_tcp_and_memory, 4));
}

}  // namespace
}  // namespace tutti::wire_codec_test
