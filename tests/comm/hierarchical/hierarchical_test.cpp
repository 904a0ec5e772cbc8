// Ranks: 2 x 2, 3 x 2, 2 x 3, 2 x 4 and 3 x 4 (nodes x ranks), as threads and as processes. Shared memory inside nodes,
// messages between nodes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "comm/backend/topology.h"
#include "comm/hierarchical/backend.h"
#include "support/ranks.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::comm::hierarchical_test {
namespace {

using test::random_tensor;
using test::RankProgram;
using test::run_processes;

at::Tensor sum_of(const Communicator& communicator, const at::Tensor& values) {
  const auto memory = GradientCommunicator(communicator)
                          .allocate(static_cast<std::int64_t>(values.nbytes()))
                          .view(values.scalar_type());
  memory.copy_(values);
  const auto sum = GradientCommunicator(communicator).start_all_reduce(memory);
  sum->finish_reduce_scatter(0.3);
  sum->wait();
  return memory.clone();
}

TEST(Hierarchy, FitsNodesOfEqualNumbersOfConsecutiveRanks) {
  const auto fits = [](std::vector<int> nodes) { return fits_hierarchy(make_topology(std::move(nodes), 0)); };
  const auto keeps = [](std::vector<int> nodes) {
    return hierarchy_preserves_bits(make_topology(std::move(nodes), 0));
  };
  EXPECT_TRUE(fits({0, 0, 1, 1}));
  EXPECT_TRUE(fits({0, 0, 0, 1, 1, 1}));
  EXPECT_FALSE(fits({0, 0, 0, 0}));
  EXPECT_FALSE(fits({0, 1, 2, 3}));
  EXPECT_FALSE(fits({0, 1, 0, 1}));
  EXPECT_FALSE(fits({0, 0, 0, 1}));
  EXPECT_FALSE(fits({0, 0, 1, 1, 2}));
  EXPECT_TRUE(keeps({0, 0, 1, 1, 2, 2}));
  EXPECT_FALSE(keeps({0, 0, 0, 1, 1, 1}));
}

// Both backends give equal bits, also with many all-reduces in flight.
void check_bits(const Communicator& hierarchical, const Communicator& flat) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::int64_t elements : {10, 50'000, 300'001}) {
      const auto seed = static_cast<std::uint64_t>(elements * 10 + flat.rank());
      const at::Tensor values = random_tensor({elements}, seed).to(dtype);
      EXPECT_TRUE(at::equal(sum_of(hierarchical, values), sum_of(flat, values))) << toString(dtype) << elements;
    }
  }
  constexpr std::int64_t part = 20'000;
  const at::Tensor memory = GradientCommunicator(hierarchical).allocate(10 * part * 4).view(at::kFloat);
  const at::Tensor copy = memory.clone();
  for (int iteration = 0; iteration < 3; ++iteration) {
    memory.copy_(random_tensor({10 * part}, static_cast<std::uint64_t>(100 + iteration * 10 + flat.rank())));
    copy.copy_(memory);
    std::vector<std::shared_ptr<PendingAllReduce>> sums;
    for (int bucket = 0; bucket < 10; ++bucket) {
      sums.emplace_back(GradientCommunicator(hierarchical).start_all_reduce(memory.narrow(0, bucket * part, part)));
      GradientCommunicator(hierarchical).submit([sum = sums.back()] { sum->finish_reduce_scatter(0.5); });
      // Waiting for one all-reduce in the middle must not change the order of the remaining all-reduces.
      if (bucket == 4) GradientCommunicator(hierarchical).submit([sum = sums[3]] { sum->wait(); }).wait();
    }
    GradientCommunicator(hierarchical)
        .submit([&] {
          for (std::size_t i = 0; i < sums.size(); ++i) {
            if (i != 3) sums[i]->wait();
          }
        })
        .wait();
    const auto sum = GradientCommunicator(flat).start_all_reduce(copy);
    sum->finish_reduce_scatter(0.5);
    sum->wait();
    EXPECT_TRUE(at::equal(memory, copy));
  }
}

TEST(Hierarchical, SumsHaveTheBitsOfMessages) {
  for (const auto& [size, nodes] : {std::pair(4, 2), std::pair(6, 3), std::pair(8, 2), std::pair(12, 3)}) {
    const auto flat = make_thread_communicators(size, {}, nodes);
    run_thread_ranks(
        size, [&](const Communicator& communicator) { check_bits(communicator, flat[communicator.rank()]); },
        {.backend = "hierarchical"}, nodes);
  }
}

const RankProgram over_tcp("hierarchical_over_tcp", [] {
  const Communicator job = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(30)});
  EXPECT_EQ(job.backend_name(), "shared memory + tcp");
  EXPECT_GT(job.topology().num_nodes, 1);
  const Communicator flat = Communicator::connect(read_environment(), {.backend = "tcp"});
  check_bits(job.duplicate("gradients"), flat);
  // A group inside a node, and a group across nodes.
  const auto node = job.split(job.topology().node_rank);
  EXPECT_EQ(node->backend_name(), "shared memory + tcp");
  const auto inter_node = job.split(job.topology().local_rank);
  EXPECT_EQ(inter_node->backend_name(), "tcp");
  at::Tensor one = at::ones({1});
  node->all_reduce(one).wait();
  inter_node->all_reduce(one).wait();
  EXPECT_EQ(one.item<float>(), static_cast<float>(job.size()));
  // Objects that are gathered node by node are in rank order, and small tensors use the flat algorithm.
  const auto gathered = job.all_gather_object(std::string(static_cast<std::size_t>(job.rank()), 'x'));
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) EXPECT_EQ(gathered[rank].size(), rank);
  // The smaller tensor is sent with the call signature.
  for (const std::int64_t elements : {3, 300}) {
    const at::Tensor numbers = at::full({elements}, job.rank() + 1.0F);
    job.all_reduce(numbers, ReduceOp::max).wait();
    EXPECT_TRUE(at::equal(numbers, at::full({elements}, static_cast<float>(job.size()))));
    const int last = job.size() - 1;
    job.broadcast(numbers.fill_(job.rank() == last ? 7 : 0), last).wait();
    EXPECT_TRUE(at::equal(numbers, at::full({elements}, 7.0F)));
  }
});
TEST(Hierarchical, IsTheDefaultOnSeveralNodesOfSeveralRanks) {
  test::expect_success(run_processes(over_tcp, 4, {.num_nodes = 2}));
  test::expect_success(run_processes(over_tcp, 6, {.num_nodes = 3}));
  test::expect_success(run_processes(over_tcp, 12, {.num_nodes = 3}));
}

// Up to 1 KiB is sent with the call signature.
const RankProgram small_payloads("hierarchical_small_payloads", [] {
  const auto hierarchical = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(30)});
  const auto flat = Communicator::connect(read_environment(), {.backend = "tcp"});
  const int size = flat.size();
  const int rank = flat.rank();
  for (const std::int64_t elements : {0, 1, 255, 256, 257, 2000}) {
    const at::Tensor values = random_tensor({elements}, static_cast<std::uint64_t>(elements * 10 + rank));
    const auto results_of = [&](const Communicator& communicator) {
      const at::Tensor sum = values.clone();
      const at::Tensor product = values.clone();
      const at::Tensor root_values = values.clone();
      const at::Tensor all = at::empty({size * elements});
      communicator.all_reduce(sum, ReduceOp::mean).wait();
      communicator.all_reduce(product, ReduceOp::product).wait();
      communicator.broadcast(root_values, size - 1).wait();
      communicator.all_gather(all, values).wait();
      return at::cat({sum, product, root_values, all});
    };
    EXPECT_TRUE(at::equal(results_of(hierarchical), results_of(flat))) << elements;
  }
  // Calls with payloads of different lengths are a mismatch, not a timeout.
  for (const std::int64_t elements : {1, 256, 257}) {
    const at::Tensor tensor = at::ones({elements});
    const Work work = rank == 1 ? hierarchical.all_reduce(tensor) : hierarchical.barrier();
    EXPECT_THROW(work.wait(), MismatchError) << elements;
  }
  hierarchical.barrier().wait();
});
TEST(Hierarchical, SmallPayloadsHaveTheResultsOfMessages) {
  test::expect_success(run_processes(small_payloads, 4, {.num_nodes = 2}));
  test::expect_success(run_processes(small_payloads, 12, {.num_nodes = 3}));
}

const RankProgram refused("hierarchical_refused", [] {
  EXPECT_THROW(Communicator::connect(read_environment(), {.backend = "hierarchical"}), UsageError);
});
TEST(Hierarchical, IsRefusedOnOneNode) {
  test::expect_success(run_processes(refused, 3));
}

// With three ranks per node, sums that are computed node by node have other bits.
const RankProgram nodes_of_three("hierarchical_nodes_of_three", [] {
  const auto found = Communicator::connect(read_environment());
  EXPECT_EQ(found.backend_name(), "tcp");
  const auto asked = Communicator::connect(read_environment(), {.backend = "hierarchical"});
  EXPECT_EQ(asked.backend_name(), "shared memory + tcp");
  const auto sum = sum_of(asked, at::full({100'000}, 1.0));
  EXPECT_NEAR(sum.max().item<double>(), 6 * 0.3, 1e-6);
});
TEST(Hierarchical, OnNodesOfThreeOnlyWhenAskedFor) {
  test::expect_success(run_processes(nodes_of_three, 6, {.num_nodes = 2}));
}

// The limit on the size of files also applies to shared memory.
void limit_shared_memory() {
  const rlimit small{.rlim_cur = 100'000, .rlim_max = 100'000};
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
}

const RankProgram without_memory("hierarchical_without_memory", [] {
  const auto communicator = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(30)});
  EXPECT_EQ(communicator.backend_name(), "shared memory + tcp");
  if (communicator.rank() == 2) limit_shared_memory();  // the node leader, which creates the memory of its node
  const at::Tensor sum = sum_of(communicator, at::full({100'000}, 1.0 + communicator.rank()));
  EXPECT_TRUE(at::allclose(sum, at::full({100'000}, 10 * 0.3)));
  const at::Tensor fits = sum_of(communicator, at::full({10'000}, 1.0 + communicator.rank()));
  EXPECT_TRUE(at::allclose(fits, at::full({10'000}, 10 * 0.3)));
});
TEST(Hierarchical, ARankWithoutSharedMemoryMakesAllRanksUseMessages) {
  test::expect_success(run_processes(without_memory, 4, {.num_nodes = 2}));
}

const RankProgram one_is_absent("hierarchical_one_is_absent", [] {
  const auto job = Communicator::connect(read_environment());
  if (job.rank() == 3) {
    std::signal(SIGUSR1, [](int) {});
    ::pause();
  }
  job.barrier({.name = "end"}).wait();
});
TEST(Hierarchical, OneRankPerNodeLogsTheSlowRank) {
  test::RankProcesses ranks(one_is_absent, 4, {.num_nodes = 2});
  EXPECT_TRUE(ranks.wait_for_output(0, "has waited for 10 s for rank 2"));
  EXPECT_TRUE(ranks.wait_for_output(2, "has waited for 10 s for rank 3"));
  ranks.send_signal(3, SIGUSR1);
  const auto results = ranks.wait();
  test::expect_success(results);
  EXPECT_EQ(results[1].output.find("has waited"), std::string::npos) << results[1].output;
}

/// The number of connections over TCP that this process has.
int connections() {
  int count = 0;
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    const int number = std::stoi(descriptor.path().filename().string());
    const bool is_connected = ::getpeername(number, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    if (is_connected && address.ss_family != AF_UNIX) ++count;
  }
  return count;
}

const RankProgram many_ranks("hierarchical_many_ranks", [] {
  const auto job = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(30)});
  EXPECT_EQ(job.backend_name(), "shared memory + tcp");
  const int local_rank = job.topology().local_rank;
  const int at_start = connections();  // node leaders are connected
  const auto is_connected = [&] { return local_rank == 0 || connections() > at_start; };
  job.barrier().wait();
  const at::Tensor numbers = at::arange(job.rank(), job.rank() + 40, at::kLong);
  job.all_reduce(numbers, ReduceOp::sum).wait();
  EXPECT_TRUE(at::equal(numbers, at::arange(40, at::kLong) * job.size() + job.size() * (job.size() - 1) / 2));
  const at::Tensor mean = at::full({3}, job.rank(), at::kHalf);
  job.all_reduce(mean, ReduceOp::mean).wait();
  EXPECT_TRUE(at::equal(mean, at::full({3}, (job.size() - 1) / 2.0, at::kHalf)));
  EXPECT_EQ(job.all_gather_object(std::to_string(job.rank())).back(), std::to_string(job.size() - 1));
  sum_of(job.duplicate("few"), at::ones({20}));
  // 80 bytes are two cache lines, so only the ranks with local rank 0 and 1 own a shard.
  EXPECT_EQ(is_connected(), local_rank < 2);
  sum_of(job.duplicate("many"), at::ones({100}));
  EXPECT_TRUE(is_connected());
  // The smaller output is broadcast in the node through the leader's slots, the larger one through staging buffers.
  for (const std::int64_t elements : {1000, 10'000}) {
    const at::Tensor all = at::empty({job.size() * elements}, at::kFloat);
    job.all_gather(all, at::full({elements}, job.rank(), at::kFloat)).wait();
    EXPECT_TRUE(at::equal(all, at::arange(job.size(), at::kFloat).repeat_interleave(elements))) << elements;
  }
  // Where a node leader gets no shared memory, the ranks of the other local ranks exchange messages as well.
  if (job.rank() == 4) limit_shared_memory();
  const int before = connections();
  const at::Tensor ones = at::ones({100'000});
  EXPECT_TRUE(at::allclose(sum_of(job, ones), ones * (0.3 * job.size())));
  EXPECT_TRUE(local_rank != 1 || connections() > before);
  job.barrier().wait();
});
TEST(Hierarchical, OfManyRanksOnlyOwnersOfAShardConnectToOtherNodes) {
  test::expect_success(run_processes(many_ranks, 12, {.num_nodes = 3}));
}

const RankProgram one_is_late("hierarchical_one_is_late", [] {
  const auto job = Communicator::connect(read_environment());
  const int late = std::stoi(std::getenv("LATE_RANK"));
  if (job.rank() == late) {
    std::signal(SIGUSR1, [](int) {});
    ::pause();
    return;
  }
  try {
    job.barrier({.timeout = std::chrono::seconds(1)}).wait();
    ADD_FAILURE() << "the barrier did not wait";
  } catch (const TimeoutError& timeout) {
    EXPECT_EQ(timeout.ranks(), std::vector<int>{late}) << timeout.what();
  }
  std::cout << "done" << std::endl;
});
TEST(Hierarchical, AllRanksNameTheLateRank) {
  for (const int late : {0, 1, 2, 3}) {
    test::RankProcesses ranks(one_is_late, 4, {.num_nodes = 2, .variables = {{"LATE_RANK", std::to_string(late)}}});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == late) continue;
      EXPECT_TRUE(ranks.wait_for_output(rank, "done")) << "rank " << rank << " without " << late;
    }
    ranks.send_signal(late, SIGUSR1);
    test::expect_success(ranks.wait());
  }
}

const RankProgram killed_in_exchanges("hierarchical_killed_in_exchanges", [] {
  const auto job = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(30)});
  const int killed = std::stoi(std::getenv("KILLED_RANK"));
  try {
    for (int iteration = 0;; ++iteration) {
      if (iteration == 20 && job.rank() == killed) raise(SIGKILL);
      job.barrier().wait();
    }
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.ranks(), std::vector<int>{killed}) << failure.what();
    std::cout << "named" << std::endl;
  }
});
TEST(Hierarchical, ARankKilledBetweenExchangesIsNamedOnAllNodes) {
  for (const int killed : {2, 3}) {
    const auto results =
        run_processes(killed_in_exchanges, 4, {.num_nodes = 2, .variables = {{"KILLED_RANK", std::to_string(killed)}}});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == killed) continue;
      EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
      EXPECT_NE(results[rank].output.find("named"), std::string::npos) << results[rank].output;
    }
  }
}

const RankProgram killed("hierarchical_killed", [] {
  const auto communicator = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(30)});
  at::Tensor memory = GradientCommunicator(communicator).allocate(4 << 20).view(at::kFloat);
  try {
    for (int iteration = 0;; ++iteration) {
      const auto sum = GradientCommunicator(communicator).start_all_reduce(memory);
      if (iteration == 5 && communicator.rank() == 2) raise(SIGKILL);
      sum->finish_reduce_scatter(1.0);
      sum->wait();
    }
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.ranks(), std::vector<int>{2}) << failure.what();
    std::cout << "named" << std::endl;
  }
});
TEST(Hierarchical, ARankKilledInTheMiddleIsNamedOnAllNodes) {
  const auto results = run_processes(killed, 4, {.num_nodes = 2});
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_NE(results[rank].output.find("named"), std::string::npos) << results[rank].output;
  }
}

}  // namespace
}  // namespace tutti::comm::hierarchical_test
