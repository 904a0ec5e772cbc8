// Ranks: 2 clients in one process, whose coordinator is another process.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/rendezvous.h"
#include "coordinator/processes.h"
#include "coordinator/server.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::comm::gather_test {
namespace {

using namespace std::chrono_literals;
using coordinator::test::Process;

void run_server(Process& parent) {
  const coordinator::Server server({.listening = listen_tcp(loopback_host).socket,
                                    .world_size = 2,
                                    .timeouts = {.heartbeat = 60s},
                                    .linger = std::chrono::milliseconds(0)});
  parent.write_line(std::to_string(server.port()));
  parent.read_line();
}

Rendezvous rendezvous_at(const std::string& port, int rank) {
  const coordinator::ClientOptions options{.port = static_cast<std::uint16_t>(std::stoi(port)),
                                           .member = {.rank = rank, .world_size = 2},
                                           .connect_timeout = 60s,
                                           .timeouts = {.heartbeat = 60s}};
  return {.job = std::make_shared<JobConnection>(nullptr, options, -1), .group = "group", .members = {0, 1}};
}

TEST(CoordinatorAllGather, WaitsForACoordinatorThatIsStopped) {
  Process server(run_server);
  const auto port = server.read_line();
  const auto first = rendezvous_at(port, 0);
  const auto second = rendezvous_at(port, 1);
  server.stop();
  auto values = std::async(std::launch::async, [&] { return coordinator_all_gather(first, "topic", 0, "a", 60s); });
  EXPECT_EQ(values.wait_for(2500ms), std::future_status::timeout);
  server.signal(SIGCONT);
  const std::vector<std::string> expected{"a", "b"};
  EXPECT_EQ(coordinator_all_gather(second, "topic", 1, "b", 60s), expected);
  EXPECT_EQ(values.get(), expected);
}

}  // namespace
}  // namespace tutti::comm::gather_test
