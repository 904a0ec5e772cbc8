// Ranks: 2 and 3 processes on simulated nodes of their own, with a secret.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <list>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include "core/bound_socket.h"
#include "core/socket.h"
#include "support/listening.h"
#include "support/ranks.h"
#include "support/socket_bytes.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::test::job_secret_test {
namespace {

using namespace std::chrono_literals;

constexpr const char* variable = "TUTTI_JOB_SECRET";
constexpr const char* right = "the secret of this job";
constexpr const char* wrong = "the secret of another job";

// Setting the variable is safe, because a rank program has one thread before it connects.
void set_secret(const char* secret) {
  if (secret == nullptr) {
    ::unsetenv(variable);  // NOLINT(concurrency-mt-unsafe)
  } else {
    ::setenv(variable, secret, 1);  // NOLINT(concurrency-mt-unsafe)
  }
}

void connect_and_sum() {
  const auto communicator = Communicator::connect(read_environment(), {.connect_timeout = 50s});
  const auto sum = at::full({5}, communicator.rank() + 1.0F);
  communicator.all_reduce(sum).wait();
  EXPECT_EQ(sum[0].item<float>(), communicator.size() == 2 ? 3.0F : 6.0F);
}

void expect_refusal(const std::string& part) {
  try {
    Communicator::connect(read_environment(), {.connect_timeout = 50s});
    ADD_FAILURE() << "connected";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find(right), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find(wrong), std::string::npos) << error.what();
  }
}

ProcessOptions nodes(int count, const std::string& secret = right) {
  return {.num_nodes = count, .variables = {{variable, secret}}};
}

const RankProgram connects_repeatedly("secret_connects_repeatedly", [] {
  for (int time = 0; time < 3; ++time) connect_and_sum();
  const auto one = Communicator::connect(read_environment());
  connect_and_sum();  // while the first communicator exists
  one.barrier().wait();
  for (const auto& address : listening_addresses()) EXPECT_EQ(address, "127.0.0.1");
});

TEST(Secret, RanksThatShareItConnect) {
  expect_success(run_processes(connects_repeatedly, 2, nodes(2)));
  expect_success(run_processes(connects_repeatedly, 3, nodes(3)));
}

const RankProgram one_is_wrong("secret_one_is_wrong", [] {
  if (read_environment().rank == 2) {
    set_secret(wrong);
    expect_refusal("refused rank 2: it does not know this rank's secret");
    set_secret(nullptr);
    expect_refusal("Do both sides have the same secret, or none?");
    set_secret(right);
  }
  connect_and_sum();
});

TEST(Secret, ARankWithoutItThrowsAndTheOthersWait) {
  expect_success(run_processes(one_is_wrong, 3, nodes(3)));
}

const RankProgram rank_zero_has_none("secret_rank_zero_has_none", [] {
  if (read_environment().rank == 1) {
    expect_refusal("Do both sides have the same secret, or none?");
    return;
  }
  set_secret(nullptr);
  EXPECT_THROW(Communicator::connect(read_environment(), {.connect_timeout = 10s}), TimeoutError);
});

TEST(Secret, TheOthersDetectARankZeroWithoutIt) {
  expect_success(run_processes(rank_zero_has_none, 2, nodes(2)));
}

const RankProgram is_too_short("secret_is_too_short", [] { expect_refusal("which can be guessed"); });

TEST(Secret, IsCheckedBeforeConnecting) {
  expect_success(run_processes(is_too_short, 2, nodes(2, "12345")));
}

/// Tries again while rank 0 does not listen yet.
FileDescriptor connect(int port) {
  for (;;) {
    try {
      auto client = connect_nonblocking({"127.0.0.1", port});
      pollfd ready{.fd = client.get(), .events = POLLOUT, .revents = 0};
      EXPECT_EQ(::poll(&ready, 1, 10'000), 1);
      finish_connect(client);
      return client;
    } catch (const std::system_error&) {
      std::this_thread::yield();
    }
  }
}

/// Connects as a scanner does: some clients send nothing, some send garbage with huge lengths. The connections stay
/// open.
void scan(int port, std::list<FileDescriptor>& clients) {
  for (int i = 0; i < 20; ++i) {
    clients.push_back(connect(port));
    const std::string words(static_cast<std::size_t>(i / 2) * 500, '\xff');
    test::try_write(clients.back(), std::as_bytes(std::span(words)));
  }
}

// The last rank scans the job's port before it connects. Then this rank scans all ports at which rank 0 listens, also
// after messages were sent.
const RankProgram is_scanned("secret_is_scanned", [] {
  const auto environment = read_environment();
  const bool scans = environment.rank == environment.world_size - 1;
  std::list<FileDescriptor> clients;
  if (scans) scan(environment.master_port, clients);
  const auto communicator = Communicator::connect(environment, {.backend = "tcp"});
  for (int time = 0; time < 3; ++time) {
    std::string ports;
    for (const auto& place : tcp_listeners()) ports += std::to_string(place.port) + " ";
    std::istringstream of_rank_zero(communicator.broadcast_object(ports));
    for (int port = 0; scans && of_rank_zero >> port;) scan(port, clients);
    const auto sum = at::full({5}, 1.0F);
    communicator.all_reduce(sum).wait();
    EXPECT_EQ(sum[0].item<float>(), 2.0F);
    const auto peer = 1 - communicator.rank();
    const auto message = communicator.send(sum, peer);
    communicator.receive(sum, peer).wait();
    message.wait();
    const auto group = communicator.split(0);  // uses the store
    group->barrier().wait();
  }
  if (scans) {
    EXPECT_GE(clients.size(), 140U);
  }
});

TEST(Secret, AScannerDoesNotDisturbTheJob) {
  expect_success(run_processes(is_scanned, 2, nodes(2)));
}

const RankProgram connects("secret_connects", [] { connect_and_sum(); });

class Agent {
 public:
  Agent() {
    auto socket = bind_to_loopback(std::nullopt);
    start_listening(socket);
    c10d::TCPStoreOptions options;
    options.port = socket.port;
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = socket.fd.release();
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  c10d::TCPStore& store() { return *store_; }
  ProcessOptions job_of(int num_nodes) const {
    auto job = nodes(num_nodes);
    job.variables["MASTER_PORT"] = std::to_string(store_->getPort());
    job.variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    return job;
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

constexpr const char* coordinator_key = "tutti/0/coordinator/1";

// torchrun's agent serves a store without authentication: ranks only read the address of rank 0 there.
TEST(Secret, RanksReadAnAddressWhereAnAgentServesAStore) {
  Agent agent;
  expect_success(run_processes(connects, 2, agent.job_of(2)));
  EXPECT_EQ(agent.store().listKeys().size(), 3U);  // two counters and an address
  EXPECT_TRUE(agent.store().get_to_str(coordinator_key).ends_with(" -")) << "no secret beside the user's";
}

TEST(Secret, RankZeroMakesOneWhereTheUserHasNone) {
  Agent agent;
  auto job = agent.job_of(1);
  job.variables.erase(variable);
  expect_success(run_processes(connects, 2, job));
  const auto place = agent.store().get_to_str(coordinator_key);
  EXPECT_TRUE(place.starts_with("127.0.0.1 ")) << place;
  EXPECT_GE(place.size() - place.rfind(' '), 64U);
}

// A process that can write to the agent's store can only direct ranks to a server that fails authentication.
const RankProgram finds_a_false_server("secret_finds_a_false_server",
                                       [] { expect_refusal("does not know this rank's secret"); });

TEST(Secret, AnUnauthenticatedServerAtTheAgentsStoreIsDetected) {
  Agent agent;
  const auto false_server = listen_tcp("127.0.0.1");
  agent.store().c10d::Store::set(coordinator_key, "127.0.0.1 " + std::to_string(false_server.address.port) + " -");
  std::thread answers([&] {
    pollfd ready{.fd = false_server.socket.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 50'000), 1);
    const auto caller = try_accept(false_server.socket);
    ASSERT_TRUE(caller);
    const std::string words(1000, 'x');
    test::try_write(*caller, std::as_bytes(std::span(words)));
    ready.fd = caller->get();
    ::poll(&ready, 1, 50'000);
  });
  auto job = agent.job_of(2);
  job.absent = {0};
  const auto results = run_processes(finds_a_false_server, 2, job);
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
  answers.join();
}

// On one node no rank needs a port that other machines can reach.
const RankProgram listens_at_loopback("listens_at_loopback_only", [] {
  auto environment = read_environment();
  environment.master_addr = "localhost";
  const auto communicator = Communicator::connect(environment, {.backend = "tcp"});
  const auto sum = at::full({5}, 1.0F);
  communicator.all_reduce(sum).wait();
  const auto next = (communicator.rank() + 1) % communicator.size();
  const auto message = communicator.send(sum, next);
  communicator.receive(at::full({5}, 0.0F), (communicator.rank() + communicator.size() - 1) % communicator.size())
      .wait();
  const auto all = listening_addresses();
  EXPECT_FALSE(all.empty());
  for (const auto& address : all) EXPECT_EQ(address, "127.0.0.1");
  message.wait();
  communicator.barrier().wait();
});

TEST(OneNode, ListensOnTheLoopbackInterfaceOnly) {
  expect_success(run_processes(listens_at_loopback, 3));
}

}  // namespace
}  // namespace tutti::test::job_secret_test
