// Ranks: 2 and 3 processes on simulated nodes of their own: over IPv6, and with a range of ports.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/port_range.h"
#include "core/socket.h"
#include "support/listening.h"
#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::test::addresses_test {
namespace {

using namespace std::chrono_literals;

/// All-reduce, send and receive, which open all connections.
void exchange(const Communicator& communicator) {
  const auto sum = at::full({100'000}, 1.0F);
  communicator.all_reduce(sum).wait();
  EXPECT_EQ(sum[0].item<float>(), static_cast<float>(communicator.size()));
  const int size = communicator.size();
  const auto sent = communicator.send(at::full({5}, 1.0F), (communicator.rank() + 1) % size);
  communicator.receive(at::full({5}, 0.0F), (communicator.rank() + size - 1) % size).wait();
  sent.wait();
}

const RankProgram uses_ipv6("addresses_uses_ipv6", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  exchange(communicator);
  const auto addresses = listening_addresses();
  EXPECT_EQ(addresses.size(), communicator.rank() == 0 ? 2U : 1U);
  for (const auto& address : addresses) EXPECT_EQ(address, "::1");
  communicator.barrier().wait();
});

TEST(Ipv6, RanksMeetAndExchangeMessages) {
  try {
    listen_tcp("::1");
  } catch (const std::system_error&) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  for (const std::string encrypts : {"0", "1"}) {
    const ProcessOptions options{
        .num_nodes = 3,
        .variables = {
            {"MASTER_ADDR", "::1"}, {"TUTTI_JOB_SECRET", "the secret of this job"}, {"TUTTI_ENCRYPTION", encrypts}}};
    expect_success(run_processes(uses_ipv6, 3, options));
  }
}

const RankProgram finds_no_coordinator("addresses_finds_no_coordinator", [] {
  try {
    Communicator::connect(read_environment(), {.connect_timeout = 1s});
    ADD_FAILURE() << "connected";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("[::1]:"), std::string::npos) << error.what();
  }
});

TEST(Ipv6, AnErrorNamesTheAddressInBrackets) {
  ProcessOptions options{.num_nodes = 2, .variables = {{"MASTER_ADDR", "::1"}}};
  options.absent = {0};
  EXPECT_EQ(run_processes(finds_no_coordinator, 2, options)[1].exit_code, 0);
}

const RankProgram listens_in_range("addresses_listens_in_range", [] {
  const auto environment = read_environment();
  const auto range = read_port_range([](const std::string& name) -> std::optional<std::string> {
    return std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  });
  const auto communicator = Communicator::connect(environment, {.backend = "tcp"});
  exchange(communicator);
  int in_range = 0;
  for (const auto& listener : tcp_listeners()) {
    if (listener.port == environment.master_port) continue;
    EXPECT_GE(listener.port, range.first);
    EXPECT_LE(listener.port, range.last);
    ++in_range;
  }
  EXPECT_EQ(in_range, 1);
  communicator.barrier().wait();
});

const RankProgram finds_no_port("addresses_finds_no_port", [] {
  try {
    exchange(Communicator::connect(read_environment(), {.backend = "tcp"}));
    ADD_FAILURE() << "connected";
  } catch (const PeerError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("on rank "), std::string::npos) << text;
    EXPECT_NE(text.find(std::string("TUTTI_PORT_RANGE=") + std::getenv("TUTTI_PORT_RANGE")), std::string::npos) << text;
  }
});

const RankProgram last_rank_finds_no_port("addresses_last_rank_finds_no_port", [] {
  const auto environment = read_environment();
  const int last = environment.world_size - 1;
  if (environment.rank == last) {
    ::setenv("TUTTI_PORT_RANGE", std::getenv("FULL_PORT_RANGE"), 1);  // NOLINT(concurrency-mt-unsafe)
  }
  try {
    Communicator::connect(environment);
    ADD_FAILURE() << "connected";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{last});
    const std::string text = error.what();
    EXPECT_NE(text.find("Connecting: on rank " + std::to_string(last) + ": listening on"), std::string::npos) << text;
    EXPECT_NE(text.find(std::string("TUTTI_PORT_RANGE=") + std::getenv("FULL_PORT_RANGE")), std::string::npos) << text;
  }
});

TEST(PortRange, RanksListenInIt) {
  const auto taken = listen_tcp("127.0.0.1");
  const auto range_of = [&](int ports) {
    const int first = std::min(taken.address.port, 65535 - ports);
    return std::to_string(first) + "-" + std::to_string(first + ports - 1);
  };
  for (const int nodes : {1, 2}) {
    expect_success(
        run_processes(listens_in_range, 2, {.num_nodes = nodes, .variables = {{"TUTTI_PORT_RANGE", range_of(40)}}}));
  }
  const auto full = std::to_string(taken.address.port);
  expect_success(
      run_processes(finds_no_port, 2, {.num_nodes = 2, .variables = {{"TUTTI_PORT_RANGE", full + "-" + full}}}));
  for (const int nodes : {1, 2}) {
    expect_success(run_processes(last_rank_finds_no_port, 2 * nodes,
                                 {.num_nodes = nodes, .variables = {{"FULL_PORT_RANGE", full + "-" + full}}}));
  }
}

}  // namespace
}  // namespace tutti::test::addresses_test
