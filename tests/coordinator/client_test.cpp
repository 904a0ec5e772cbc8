// A server and its clients in one process: requests, events, refusals.
#include "coordinator/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <string>
#include <thread>

#include "coordinator/frame.h"
#include "told.h"
#include "tutti/core/error.h"

namespace tutti::coordinator::client_test {
namespace {

using test::client_options;
using test::deadline;
using test::milliseconds;
using test::secret;
using test::server_options;
using test::Told;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// With and without TLS.
class CoordinatorClient : public testing::TestWithParam<bool> {
 protected:
  JobSecretPtr job_secret = GetParam() ? secret() : nullptr;
};
INSTANTIATE_TEST_SUITE_P(Plain, CoordinatorClient, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, CoordinatorClient, testing::Values(true));

TEST_P(CoordinatorClient, KeyValueRequestsAreAnswered) {
  Server server(server_options(1, job_secret));
  Client client(client_options(server, 0, 1, job_secret), {});
  client.set("a", "12");
  EXPECT_THAT(client.get({"a"}, deadline), ElementsAre("12"));
  EXPECT_EQ(client.add("a", 3), 15);
  EXPECT_EQ(client.add("absent", -2), -2);
  EXPECT_EQ(client.compare_set("a", "15", "b"), "b");
  EXPECT_EQ(client.compare_set("a", "15", "c"), "b");
  EXPECT_EQ(client.compare_set("new", "", "d"), "d");
  EXPECT_TRUE(client.check({"a", "new"}));
  EXPECT_FALSE(client.check({"a", "other"}));
  EXPECT_EQ(client.num_keys(), 3);
  EXPECT_TRUE(client.erase("a"));
  EXPECT_FALSE(client.erase("a"));
  EXPECT_THROW(client.add("new", 1), UsageError);
}

TEST_P(CoordinatorClient, ARanksNextProgramBeginsWhenAllHaveLeft) {
  Server server(server_options(2, job_secret));
  auto first = std::make_unique<Client>(client_options(server, 0, 2, job_secret), ClientEvents{});
  auto second = std::make_unique<Client>(client_options(server, 1, 2, job_secret), ClientEvents{});
  first->set("of the first program", "1");
  first.reset();
  auto next = std::async(std::launch::async, [&] {
    return std::make_unique<Client>(client_options(server, 0, 2, job_secret), ClientEvents{});
  });
  EXPECT_EQ(next.wait_for(milliseconds(100)), std::future_status::timeout) << "rank 1 is still in the first program";
  second.reset();
  EXPECT_FALSE(next.get()->check({"of the first program"}));
}

TEST_P(CoordinatorClient, TheFirstRankSetsTheTimeoutsOfALaunchersCoordinator) {
  auto options = server_options(1, job_secret);
  options.timeouts.heartbeat = milliseconds(0);
  Server server(std::move(options));
  Client client(client_options(server, 0, 1, job_secret), {});
  client.set("a", "1");
  EXPECT_THAT(client.get({"a"}, deadline), ElementsAre("1"));
}

TEST_P(CoordinatorClient, LongValuesPass) {
  Server server(server_options(1, job_secret));
  Client client(client_options(server, 0, 1, job_secret), {});
  const std::string value(max_value_bytes, 'x');
  client.set("long", value);
  EXPECT_TRUE(client.get({"long"}, deadline) == std::vector{value});
}

TEST_P(CoordinatorClient, TooLongValuesAreErrors) {
  Server server(server_options(1, job_secret));
  Client client(client_options(server, 0, 1, job_secret), {});
  const std::string value(max_value_bytes + 1, 'x');
  EXPECT_THROW(client.set("a", value), UsageError);
  EXPECT_THROW(client.compare_set("a", "", value), UsageError);
  EXPECT_THROW(client.all_gather("a", {0}, value, deadline), UsageError);
  EXPECT_EQ(client.add("the job goes on", 1), 1);
}

TEST_P(CoordinatorClient, LongKeysAreErrors) {
  Server server(server_options(1, job_secret));
  Client client(client_options(server, 0, 1, job_secret), {});
  const std::string key(max_key_bytes + 1, 'x');
  EXPECT_THROW(client.set(key, ""), UsageError);
  EXPECT_THROW(client.get({"a", key}, deadline), UsageError);
  EXPECT_THROW(client.wait({key}, deadline), UsageError);
  EXPECT_THROW(client.check({key}), UsageError);
  EXPECT_EQ(client.add("the job goes on", 1), 1);
}

TEST_P(CoordinatorClient, GetWaitsForAnotherRank) {
  Server server(server_options(2, job_secret));
  Client first(client_options(server, 0, 2, job_secret), {});
  Client second(client_options(server, 1, 2, job_secret), {});
  auto values = std::async(std::launch::async, [&] { return second.get({"a", "b"}, deadline); });
  first.set("b", "2");
  first.set("a", "1");
  EXPECT_THAT(values.get(), ElementsAre("1", "2"));
  EXPECT_THAT(
      [&] {
        second.wait({"a", "c"}, milliseconds(1));
      },
      ThrowsMessage<TimeoutError>(HasSubstr("wait 'a' and others timed out after 1 ms: key 'c' missing")));
}

TEST_P(CoordinatorClient, AllGatherReturnsValuesInTheOrderOfMembers) {
  Server server(server_options(3, job_secret));
  std::vector<std::future<std::vector<std::string>>> results;
  std::vector<std::unique_ptr<Client>> clients;
  for (int rank = 0; rank < 3; ++rank) {
    clients.push_back(std::make_unique<Client>(client_options(server, rank, 3, job_secret), ClientEvents{}));
    results.push_back(std::async(std::launch::async, [&client = *clients.back(), rank] {
      return client.all_gather("topic", {2, 0, 1}, std::to_string(rank), deadline);
    }));
  }
  for (auto& result : results) EXPECT_THAT(result.get(), ElementsAre("2", "0", "1"));
}

TEST_P(CoordinatorClient, AllGatherNamesMissingRanks) {
  Server server(server_options(3, job_secret));
  Client client(client_options(server, 0, 3, job_secret), {});
  try {
    client.all_gather("topic", {0, 1, 2}, "", milliseconds(1));
    FAIL();
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ranks 1, 2 missing"));
    EXPECT_THAT(error.ranks(), ElementsAre(1, 2));
  }
}

TEST_P(CoordinatorClient, AllGatherEndsWhenAMemberHasLeft) {
  Server server(server_options(2, job_secret));
  Client first(client_options(server, 0, 2, job_secret), {});
  auto second = std::make_unique<Client>(client_options(server, 1, 2, job_secret), ClientEvents{});
  auto result = std::async(std::launch::async, [&] { return first.all_gather("topic", {0, 1}, "", deadline); });
  second.reset();
  EXPECT_THROW(result.get(), PeerError);
}

TEST_P(CoordinatorClient, ReportsReachAllRanksAlsoLateOnes) {
  Server server(server_options(3, job_secret));
  Told first_told;
  Told second_told;
  Told third_told;
  Client first(client_options(server, 0, 3, job_secret), first_told.events());
  Client second(client_options(server, 1, 3, job_secret), second_told.events());
  second.report("group", "text");
  ASSERT_TRUE(first_told.wait_until([&] { return !first_told.reports.empty(); }));
  EXPECT_THAT(first_told.reports, ElementsAre("group/1/text"));
  Client third(client_options(server, 2, 3, job_secret), third_told.events());
  ASSERT_TRUE(third_told.wait_until([&] { return !third_told.reports.empty(); }));
  EXPECT_THAT(third_told.reports, ElementsAre("group/1/text"));
  EXPECT_TRUE(second_told.locked([&] { return second_told.reports.empty(); }));
}

TEST_P(CoordinatorClient, RanksThatLeaveHaveNotFailed) {
  Server server(server_options(2, job_secret));
  Told told;
  Client first(client_options(server, 0, 2, job_secret), told.events());
  { Client second(client_options(server, 1, 2, job_secret), {}); }
  ASSERT_TRUE(told.wait_until([&] { return !told.left.empty(); }));
  EXPECT_THAT(told.left, ElementsAre(1));
  EXPECT_TRUE(told.locked([&] { return told.failed.empty(); }));
}

TEST_P(CoordinatorClient, UnwindingIsAnExit) {
  Server server(server_options(2, job_secret));
  Told told;
  Client first(client_options(server, 0, 2, job_secret), told.events());
  try {
    Client second(client_options(server, 1, 2, job_secret), {});
    throw std::runtime_error("of the program");
  } catch (const std::runtime_error&) {
  }
  ASSERT_TRUE(told.wait_until([&] { return !told.failed.empty(); }));
  EXPECT_THAT(told.failed.front().ranks, ElementsAre(1));
  EXPECT_EQ(told.failed.front().cause, Cause::exited);
  EXPECT_TRUE(told.locked([&] { return told.left.empty(); }));
}

TEST_P(CoordinatorClient, TheEndOfTheServerIsTold) {
  auto options = server_options(1, job_secret);
  options.linger = milliseconds(0);
  auto server = std::make_unique<Server>(std::move(options));
  Told told;
  Client client(client_options(*server, 0, 1, job_secret), told.events());
  server.reset();
  ASSERT_TRUE(told.wait_until([&] { return !told.lost.empty(); }));
  EXPECT_THAT(told.lost, ElementsAre(HasSubstr("the coordinator's process has exited")));
  EXPECT_THROW(client.num_keys(), PeerError);
}

TEST_P(CoordinatorClient, TheAgentsWordIsAnExit) {
  Server server(server_options(2, job_secret));
  Told told;
  Client first(client_options(server, 0, 2, job_secret), told.events());
  server.process_exited(1);
  ASSERT_TRUE(told.wait_until([&] { return !told.failed.empty(); }));
  EXPECT_THAT(told.failed.front().ranks, ElementsAre(1));
  EXPECT_THROW(first.all_gather("topic", {0, 1}, "", deadline), PeerError);
}

// A launcher's rank may end before any rank joins.
TEST_P(CoordinatorClient, AnExitBeforeTheFirstHelloIsTold) {
  Server server(server_options(2, job_secret));
  server.process_exited(1);
  Told told;
  Client client(client_options(server, 0, 2, job_secret), told.events());
  ASSERT_TRUE(told.wait_until([&] { return !told.failed.empty(); }));
  EXPECT_THAT(told.failed.front().ranks, ElementsAre(1));
}

}  // namespace
}  // namespace tutti::coordinator::client_test
