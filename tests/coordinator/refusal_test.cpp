// Bad input: wrong and missing secrets, other jobs, ranks that come twice or contradict each other, damaged frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/client.h"
#include "coordinator/messages.h"
#include "core/bound_socket.h"
#include "core/socket.h"
#include "support/socket_bytes.h"
#include "told.h"
#include "tutti/core/error.h"

namespace tutti::coordinator::refusal_test {
namespace {

using test::client_options;
using test::milliseconds;
using test::secret;
using test::server_options;
using test::Told;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(CoordinatorRefuses, AWrongSecret) {
  Server server(server_options(2, secret()));
  Client client(client_options(server, 0, 2, secret()), {});
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(client_options(server, 1, 2, secret("another secret, also long")), {}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("refused rank 1"), HasSubstr("secret"))));
  EXPECT_EQ(client.add("the job goes on", 1), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("did not prove that it knows the job's secret"));
}

TEST(CoordinatorRefuses, AMissingSecret) {
  Server server(server_options(2, secret()));
  Client client(client_options(server, 0, 2, secret()), {});
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(client_options(server, 1, 2), {}); },
              ThrowsMessage<UsageError>(HasSubstr("Do both sides have the same secret, or none?")));
  EXPECT_EQ(client.add("the job goes on", 1), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("did not prove that it knows the job's secret"));
}

TEST(CoordinatorRefuses, ASecretWhereTheJobHasNone) {
  Server server(server_options(2));
  Client client(client_options(server, 0, 2), {});
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(client_options(server, 1, 2, secret()), {}); },
              ThrowsMessage<UsageError>(HasSubstr("Do both sides have the same secret, or none?")));
  EXPECT_EQ(client.add("the job goes on", 1), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("this job has no secret"));
}

TEST(CoordinatorRefuses, ARankThatIsThereAlready) {
  Server server(server_options(2, secret()));
  Told told;
  Client client(client_options(server, 0, 2, secret()), told.events());
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(client_options(server, 0, 2, secret()), {}); },
              ThrowsMessage<UsageError>(HasSubstr("rank 0 is in the job already")));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("rank 0 is in the job already"));
  EXPECT_EQ(client.add("the job goes on", 1), 1);
  EXPECT_TRUE(told.locked([&] { return told.lost.empty(); }));
}

// On all ranks, also those that come later.
TEST(CoordinatorRefuses, RanksWithAnotherWorldSize) {
  Server server(server_options(3, secret()));
  Told told;
  Client first(client_options(server, 0, 3, secret()), told.events());
  const auto message = HasSubstr("rank 1 has a WORLD_SIZE of 4 where the coordinator has 3");
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(client_options(server, 1, 4, secret()), {}); }, ThrowsMessage<UsageError>(message));
  ASSERT_TRUE(told.wait_until([&] { return !told.lost.empty(); }));
  EXPECT_THAT(told.lost, ElementsAre(message));
  EXPECT_THAT([&] { first.num_keys(); }, ThrowsMessage<UsageError>(message));
  EXPECT_THAT([&] { Client(client_options(server, 2, 3, secret()), {}); }, ThrowsMessage<UsageError>(message));
  testing::internal::GetCapturedStderr();
}

TEST(CoordinatorRefuses, RanksWithAnotherVersion) {
  Server server(server_options(2, secret()));
  Told told;
  Client first(client_options(server, 0, 2, secret()), told.events());
  auto options = client_options(server, 1, 2, secret());
  options.member.version = "2";
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(options, {}); },
              ThrowsMessage<UsageError>(HasSubstr("rank 1 has version 2 where rank 0 has 1")));
  EXPECT_TRUE(told.wait_until([&] { return !told.lost.empty(); }));
  testing::internal::GetCapturedStderr();
}

// Two jobs at one address: rank 1 of the second one comes first.
TEST(CoordinatorRefuses, ARankOfAnotherJob) {
  auto of_server = server_options(2, secret());
  of_server.job = "Slurm job 1, step 0";
  Server server(std::move(of_server));
  auto options = client_options(server, 1, 2, secret());
  options.member.job = "Slurm job 2, step 0";
  const auto message = HasSubstr("rank 1 belongs to Slurm job 2, step 0, and this coordinator to Slurm job 1, step 0");
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Client(options, {}); }, ThrowsMessage<UsageError>(message));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), message);
  const Client first(client_options(server, 0, 2, secret()), {});
  options.member.job = "Slurm job 1, step 0";
  EXPECT_NO_THROW(Client(options, {}));
}

TEST(CoordinatorRefuses, AnotherJobOnceAllRanksHaveCome) {
  Server server(server_options(1, secret()));
  Told told;
  Client client(client_options(server, 0, 1, secret()), told.events());
  testing::internal::CaptureStderr();
  EXPECT_THROW(Client(client_options(server, 1, 2, secret()), {}), UsageError);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(client.add("the job goes on", 1), 1);
  EXPECT_TRUE(told.locked([&] { return told.lost.empty(); }));
}

TEST(Coordinator, ClosesItsPortAfterItsLastJob) {
  Server server(server_options(2));
  auto first = std::make_unique<Client>(client_options(server, 0, 2), ClientEvents{});
  auto second = std::make_unique<Client>(client_options(server, 1, 2), ClientEvents{});
  first.reset();
  server.close_when_finished();
  EXPECT_EQ(second->add("the job goes on", 1), 1);
  // Rank 0's next program waits for the next coordinator.
  auto next = std::async(std::launch::async,
                         [&] { return std::make_unique<Client>(client_options(server, 0, 2), ClientEvents{}); });
  second.reset();
  while (!server.has_finished()) std::this_thread::yield();
  auto options = server_options(2);
  options.listening = test::listening(server.port());
  Server next_server(std::move(options));
  const auto next_first = next.get();
  next_first->set("of the next job", "1");
  EXPECT_TRUE(Client(client_options(next_server, 1, 2), {}).check({"of the next job"}));
}

TEST(Coordinator, NothingListensThere) {
  auto unused = bind_to_loopback(std::nullopt);
  ClientOptions options;
  options.port = unused.port;
  options.connect_timeout = milliseconds(50);
  options.timeouts.heartbeat = milliseconds(1000);
  EXPECT_THAT([&] { Client(options, {}); },
              ThrowsMessage<TimeoutError>(HasSubstr("did not accept rank 0 within 50 ms")));
}

TEST(Coordinator, ServesASocketOfThisUserAndIpv6) {
  const std::string name = "tutti test " + std::to_string(::getpid());
  auto local = server_options(1);
  local.listening = listen_local(name);
  local.is_local = true;
  Server local_server(std::move(local));
  auto options = client_options(local_server, 0, 1);
  options.host = "local:" + name;
  EXPECT_EQ(Client(options, {}).add("a", 1), 1);

  auto ipv6 = server_options(1);
  try {
    ipv6.listening = listen_tcp("::1").socket;
  } catch (const std::system_error&) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  Server ipv6_server(std::move(ipv6));
  options = client_options(ipv6_server, 0, 1);
  options.host = "::1";
  EXPECT_EQ(Client(options, {}).add("a", 1), 1);
}

// Random bytes, with and without a valid beginning: the connection is closed and the job goes on.
TEST(Coordinator, RandomBytesEndOnlyTheirConnection) {
  std::mt19937 random(2);  // NOLINT: repeatable
  for (const bool has_secret : {false, true}) {
    const auto job_secret = has_secret ? secret() : nullptr;
    auto options = server_options(2, job_secret);
    options.linger = milliseconds(0);  // rank 1 is never seen to leave
    Server server(std::move(options));
    Told told;
    Client client(client_options(server, 0, 2, job_secret), told.events());
    testing::internal::CaptureStderr();
    for (int trial = 0; trial < 300; ++trial) {
      std::string bytes(random() % 400, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      // In an open job: a rank that sends damaged frames, and a damaged hello behind an intact version and world size.
      const Hello hello{.member = {.rank = 1, .world_size = 2, .node = "", .version = "1"}, .key = {7, 7}};
      if (trial % 3 == 1) bytes = hello.frame() + bytes;
      if (trial % 3 == 2) bytes = hello.frame().substr(0, 33) + bytes;
      const auto socket = connect_nonblocking({"127.0.0.1", server.port()});
      for (std::size_t sent = 0; sent < bytes.size();) {
        try {
          sent += tutti::test::try_write(socket, std::as_bytes(std::span(bytes)).subspan(sent));
        } catch (const std::system_error&) {
          break;  // closed already
        }
      }
      EXPECT_EQ(client.add("the job goes on", 1), trial + 1);
    }
    testing::internal::GetCapturedStderr();
    EXPECT_TRUE(told.locked([&] { return told.lost.empty(); }));
  }
}

}  // namespace
}  // namespace tutti::coordinator::refusal_test
