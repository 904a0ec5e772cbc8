// Ranks: none. Two sides of a handshake, byte by byte, and what strangers do with it.
#include "comm/members/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/members/waiting_room.h"

namespace tutti::test::handshake_test {
namespace {

using namespace tutti::comm;
using Bytes = std::vector<std::byte>;
using Outcome = Handshake::Outcome;
using Side = Handshake::Side;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

/// All that the side has to say now.
Bytes said_by(Handshake& side, std::size_t at_a_time = 1000) {
  Bytes all;
  while (!side.to_send().empty()) {
    const auto piece = side.to_send().first(std::min(at_a_time, side.to_send().size()));
    all.insert(all.end(), piece.begin(), piece.end());
    side.sent(piece.size());
  }
  return all;
}

/// Returns what it did not want to hear.
Bytes tell(Handshake& side, Bytes bytes, std::size_t at_a_time = 1000) {
  while (!bytes.empty() && !side.to_receive().empty()) {
    const auto to = side.to_receive();
    const auto count = std::min({to.size(), bytes.size(), at_a_time});
    std::copy_n(bytes.begin(), count, to.begin());
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    side.received(count);
  }
  return bytes;
}

struct Talk {
  Handshake caller;
  Handshake called;
  Bytes greeting{};
  Bytes answer{};
  Bytes verdict{};

  void run(std::size_t at_a_time = 1000) {
    EXPECT_TRUE(tell(caller, greeting = said_by(called, at_a_time), at_a_time).empty());
    EXPECT_TRUE(tell(called, answer = said_by(caller, at_a_time), at_a_time).empty());
    EXPECT_TRUE(tell(caller, verdict = said_by(called, at_a_time), at_a_time).empty());
  }
};

Talk talk(JobSecretPtr callers, JobSecretPtr calleds, const std::string& callers_subject = "store") {
  return {.caller = Handshake(Side::calls, std::move(callers), callers_subject),
          .called = Handshake(Side::is_called, std::move(calleds), "store")};
}

TEST(Handshake, BothSidesKnowTheSecret) {
  for (const std::size_t at_a_time : {1000, 1, 7}) {
    auto both = talk(secret(), secret());
    both.run(at_a_time);
    EXPECT_EQ(both.caller.outcome(), Outcome::proven);
    EXPECT_EQ(both.called.outcome(), Outcome::proven);
    EXPECT_TRUE(both.caller.to_receive().empty());
    EXPECT_TRUE(both.called.to_receive().empty());
  }
}

TEST(Handshake, AnotherSecretIsRefusedAndToldNothing) {
  auto both = talk(secret("the secret of another job"), secret());
  both.run();
  EXPECT_EQ(both.caller.outcome(), Outcome::refused);
  EXPECT_EQ(both.called.outcome(), Outcome::unproven);
  EXPECT_TRUE(
      std::all_of(both.verdict.begin() + 8, both.verdict.end(), [](std::byte byte) { return byte == std::byte{}; }));
}

TEST(Handshake, AProofForOneSubjectIsNoneForAnother) {
  auto both = talk(secret(), secret(), "mail");
  both.run();
  EXPECT_EQ(both.caller.outcome(), Outcome::refused);
  EXPECT_EQ(both.called.outcome(), Outcome::unproven);
}

TEST(Handshake, IsNotOverBeforeTheVerdictIsSent) {
  auto both = talk(secret(), secret());
  tell(both.caller, said_by(both.called));
  tell(both.called, said_by(both.caller));
  EXPECT_EQ(both.called.outcome(), Outcome::open);
  said_by(both.called);
  EXPECT_EQ(both.called.outcome(), Outcome::proven);
}

// Somebody has heard a whole handshake and says it again, to either side.
TEST(Handshake, AReplayIsRefused) {
  auto heard = talk(secret(), secret());
  heard.run();
  Handshake called(Side::is_called, secret(), "store");
  said_by(called);
  tell(called, heard.answer);
  said_by(called);
  EXPECT_EQ(called.outcome(), Outcome::unproven);

  Handshake caller(Side::calls, secret(), "store");
  tell(caller, heard.greeting);
  said_by(caller);
  tell(caller, heard.verdict);
  EXPECT_EQ(caller.outcome(), Outcome::unproven);
}

// A stranger between two callers, or two called, has nothing to pass off as its own.
TEST(Handshake, WhatASideSaysCannotBeSaidBackToIt) {
  Handshake caller(Side::calls, secret(), "store");
  Handshake called(Side::is_called, secret(), "store");
  tell(caller, said_by(called));
  const auto answer = said_by(caller);
  Bytes verdict(answer.begin() + 32, answer.end());
  const std::string welcome = "welcome!";
  const auto letters = std::as_bytes(std::span(welcome));
  verdict.insert(verdict.begin(), letters.begin(), letters.end());
  tell(caller, verdict);
  EXPECT_EQ(caller.outcome(), Outcome::unproven);
}

TEST(Handshake, GarbageIsUnproven) {
  for (const auto byte : {std::byte{}, std::byte{0xff}, std::byte{'G'}}) {
    const Bytes garbage(100'000, byte);
    Handshake called(Side::is_called, secret(), "store");
    said_by(called);
    EXPECT_GT(tell(called, garbage).size(), 90'000U);  // no more is taken than an answer has
    said_by(called);
    EXPECT_EQ(called.outcome(), Outcome::unproven);

    Handshake caller(Side::calls, secret(), "store");
    EXPECT_GT(tell(caller, garbage).size(), 90'000U);
    EXPECT_EQ(caller.outcome(), Outcome::unproven);
    EXPECT_TRUE(caller.to_send().empty());
  }
}

TEST(Handshake, EachOneAsksAnew) {
  Handshake one(Side::is_called, secret(), "store");
  Handshake other(Side::is_called, secret(), "store");
  EXPECT_NE(said_by(one), said_by(other));
}

// RFC 4231, test case 2 has a key of 4 bytes; case 6 is the one with a key that is long enough here.
TEST(KeyedHash, IsHmacSha256) {
  const JobSecret key(std::string(131, '\xaa'), "RFC 4231");
  const std::string first = "Test Using Larger Than Block-Size ";
  const std::string second = "Key - Hash Key First";
  const auto digest = keyed_hash(key, {std::as_bytes(std::span(first)), std::as_bytes(std::span(second))});
  const std::vector<int> begin{0x60, 0xe4, 0x31, 0x59, 0x1e, 0xe0, 0xb6, 0x7f};
  for (std::size_t i = 0; i < begin.size(); ++i) EXPECT_EQ(std::to_integer<int>(digest[i]), begin[i]);
  auto other = digest;
  EXPECT_TRUE(is_same(digest, other));
  other.back() ^= std::byte{1};
  EXPECT_FALSE(is_same(digest, other));
}

TEST(WaitingRoom, TurnsAwayThoseWhoHaveWaitedLong) {
  using namespace std::chrono_literals;
  const WaitingRoom::Time now = WaitingRoom::Time{} + 1h;
  EXPECT_EQ(WaitingRoom::turned_away({}, now), 0U);
  EXPECT_EQ(WaitingRoom::turned_away({now - 11s, now - 10s, now - 9s, now}, now), 2U);
  // A crowd must be quicker.
  std::vector<WaitingRoom::Time> crowd(WaitingRoom::places, now);
  EXPECT_FALSE(WaitingRoom::has_place(crowd.size()));
  EXPECT_EQ(WaitingRoom::turned_away(crowd, now), 0U);
  crowd[0] = crowd[1] = now - 300ms;
  EXPECT_EQ(WaitingRoom::turned_away(crowd, now), 2U);
  crowd.pop_back();
  EXPECT_EQ(WaitingRoom::turned_away(crowd, now), 0U);
}

}  // namespace
}  // namespace tutti::test::handshake_test
