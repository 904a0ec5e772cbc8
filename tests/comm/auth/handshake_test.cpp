// Ranks: none. Two sides of a handshake, byte by byte, and attacks on it.
#include "comm/auth/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/pending_limit.h"

namespace tutti::test::handshake_test {
namespace {

using namespace tutti::comm;
using Bytes = std::vector<std::byte>;
using Outcome = Handshake::Outcome;
using Side = Handshake::Side;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

/// All bytes that the side sends in its present state.
Bytes sent_by(Handshake& side, std::size_t at_a_time = 1000) {
  Bytes all;
  while (!side.to_send().empty()) {
    const auto piece = side.to_send().first(std::min(at_a_time, side.to_send().size()));
    all.insert(all.end(), piece.begin(), piece.end());
    side.sent(piece.size());
  }
  return all;
}

/// Returns the bytes that the side did not accept.
Bytes feed(Handshake& side, Bytes bytes, std::size_t at_a_time = 1000) {
  while (!bytes.empty() && !side.to_receive().empty()) {
    const auto to = side.to_receive();
    const auto count = std::min({to.size(), bytes.size(), at_a_time});
    std::copy_n(bytes.begin(), count, to.begin());
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    side.received(count);
  }
  return bytes;
}

struct Exchange {
  Handshake client;
  Handshake server;
  Bytes hello{};
  Bytes response{};
  Bytes result{};

  void run(std::size_t at_a_time = 1000) {
    EXPECT_TRUE(feed(client, hello = sent_by(server, at_a_time), at_a_time).empty());
    EXPECT_TRUE(feed(server, response = sent_by(client, at_a_time), at_a_time).empty());
    EXPECT_TRUE(feed(client, result = sent_by(server, at_a_time), at_a_time).empty());
  }
};

Exchange make_exchange(JobSecretPtr client_secret, JobSecretPtr server_secret,
                       const std::string& client_subject = "store") {
  return {.client = Handshake(Side::client, std::move(client_secret), client_subject),
          .server = Handshake(Side::server, std::move(server_secret), "store")};
}

TEST(Handshake, SucceedsWithTheSameSecret) {
  for (const std::size_t at_a_time : {1000, 1, 7}) {
    auto both = make_exchange(secret(), secret());
    both.run(at_a_time);
    EXPECT_EQ(both.client.outcome(), Outcome::authenticated);
    EXPECT_EQ(both.server.outcome(), Outcome::authenticated);
    EXPECT_TRUE(both.client.to_receive().empty());
    EXPECT_TRUE(both.server.to_receive().empty());
  }
}

TEST(Handshake, AnotherSecretIsRefusedWithoutAProof) {
  auto both = make_exchange(secret("the secret of another job"), secret());
  both.run();
  EXPECT_EQ(both.client.outcome(), Outcome::refused);
  EXPECT_EQ(both.server.outcome(), Outcome::unauthenticated);
  EXPECT_TRUE(
      std::all_of(both.result.begin() + 8, both.result.end(), [](std::byte byte) { return byte == std::byte{}; }));
}

TEST(Handshake, AProofForOneSubjectFailsForAnother) {
  auto both = make_exchange(secret(), secret(), "p2p");
  both.run();
  EXPECT_EQ(both.client.outcome(), Outcome::refused);
  EXPECT_EQ(both.server.outcome(), Outcome::unauthenticated);
}

TEST(Handshake, IsPendingUntilTheResultIsSent) {
  auto both = make_exchange(secret(), secret());
  feed(both.client, sent_by(both.server));
  feed(both.server, sent_by(both.client));
  EXPECT_EQ(both.server.outcome(), Outcome::pending);
  sent_by(both.server);
  EXPECT_EQ(both.server.outcome(), Outcome::authenticated);
}

// A recorded handshake is replayed to either side.
TEST(Handshake, AReplayIsRefused) {
  auto recorded = make_exchange(secret(), secret());
  recorded.run();
  Handshake server(Side::server, secret(), "store");
  sent_by(server);
  feed(server, recorded.response);
  sent_by(server);
  EXPECT_EQ(server.outcome(), Outcome::unauthenticated);

  Handshake client(Side::client, secret(), "store");
  feed(client, recorded.hello);
  sent_by(client);
  feed(client, recorded.result);
  EXPECT_EQ(client.outcome(), Outcome::unauthenticated);
}

// An attacker cannot send a client's response back to the client as the server's result.
TEST(Handshake, AMessageCannotBeReflected) {
  Handshake client(Side::client, secret(), "store");
  Handshake server(Side::server, secret(), "store");
  feed(client, sent_by(server));
  const auto response = sent_by(client);
  Bytes result(response.begin() + 32, response.end());
  const std::string accepted = "accepted";
  const auto accepted_bytes = std::as_bytes(std::span(accepted));
  result.insert(result.begin(), accepted_bytes.begin(), accepted_bytes.end());
  feed(client, result);
  EXPECT_EQ(client.outcome(), Outcome::unauthenticated);
}

TEST(Handshake, GarbageIsUnauthenticated) {
  for (const auto byte : {std::byte{}, std::byte{0xff}, std::byte{'G'}}) {
    const Bytes garbage(100'000, byte);
    Handshake server(Side::server, secret(), "store");
    sent_by(server);
    EXPECT_GT(feed(server, garbage).size(), 90'000U);  // the server reads at most one response
    sent_by(server);
    EXPECT_EQ(server.outcome(), Outcome::unauthenticated);

    Handshake client(Side::client, secret(), "store");
    EXPECT_GT(feed(client, garbage).size(), 90'000U);
    EXPECT_EQ(client.outcome(), Outcome::unauthenticated);
    EXPECT_TRUE(client.to_send().empty());
  }
}

TEST(Handshake, EveryHandshakeHasANewChallenge) {
  Handshake one(Side::server, secret(), "store");
  Handshake other(Side::server, secret(), "store");
  EXPECT_NE(sent_by(one), sent_by(other));
}

// RFC 4231, test case 6. The key of test case 2 has only 4 bytes, which is too short here.
TEST(Hmac, MatchesRfc4231) {
  const JobSecret key(std::string(131, '\xaa'), "RFC 4231");
  const std::string first = "Test Using Larger Than Block-Size ";
  const std::string second = "Key - Hash Key First";
  const auto digest = hmac_sha256(key, {std::as_bytes(std::span(first)), std::as_bytes(std::span(second))});
  const std::vector<int> begin{0x60, 0xe4, 0x31, 0x59, 0x1e, 0xe0, 0xb6, 0x7f};
  for (std::size_t i = 0; i < begin.size(); ++i) EXPECT_EQ(std::to_integer<int>(digest[i]), begin[i]);
  auto other = digest;
  EXPECT_TRUE(constant_time_equal(digest, other));
  other.back() ^= std::byte{1};
  EXPECT_FALSE(constant_time_equal(digest, other));
}

TEST(PendingLimit, EvictsTheOldestConnections) {
  using namespace std::chrono_literals;
  const PendingLimit::Time now = PendingLimit::Time{} + 1h;
  EXPECT_EQ(PendingLimit::to_evict({}, now), 0U);
  EXPECT_EQ(PendingLimit::to_evict({now - 11s, now - 10s, now - 9s, now}, now), 2U);
  // At the limit the timeout is shorter.
  std::vector<PendingLimit::Time> pending(PendingLimit::max_pending, now);
  EXPECT_FALSE(PendingLimit::has_capacity(pending.size()));
  EXPECT_EQ(PendingLimit::to_evict(pending, now), 0U);
  pending[0] = pending[1] = now - 300ms;
  EXPECT_EQ(PendingLimit::to_evict(pending, now), 2U);
  pending.pop_back();
  EXPECT_EQ(PendingLimit::to_evict(pending, now), 0U);
}

}  // namespace
}  // namespace tutti::test::handshake_test
