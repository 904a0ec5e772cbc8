// Ranks: none. Matching of messages and receives.
#include "comm/transport/tcp/matcher.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

namespace tutti::test::matcher_test {
namespace {

using namespace tutti::comm;
using FrameKind = FrameHeader::Kind;
using OutcomeKind = Outcome::Kind;

constexpr std::uint64_t channel = 7;

struct Receive final : Message {
  std::array<char, 4> bytes{};
  void complete(const Outcome&) override {}
  std::string text() const { return {bytes.data(), bytes.size()}; }
};
using ReceivePtr = std::shared_ptr<Receive>;

ReceivePtr receive_from(int rank, std::uint64_t tag = 0) {
  auto receive = std::make_shared<Receive>();
  receive->rank = rank;
  receive->channel = channel;
  receive->tag = tag;
  receive->memory = std::as_writable_bytes(std::span(receive->bytes));
  return receive;
}

class MatcherTest : public testing::Test {
 protected:
  Body begin(int source, std::uint64_t tag, std::uint64_t bytes = 4) {
    Body body;
    EXPECT_TRUE(matcher.on_frame({.channel = channel, .tag = tag, .bytes = bytes}, source, body, effects));
    return body;
  }
  bool frame(FrameKind kind, int source, std::uint64_t id, std::uint64_t bytes = 0) {
    return matcher.on_frame({.kind = kind, .channel = channel, .bytes = bytes, .id = id}, source, body_, effects);
  }
  void fill(Body& body, int source, const char* text) {
    if (body.to != nullptr) std::memcpy(body.to, text, static_cast<std::size_t>(body.left));
    body.left = 0;
    matcher.on_body(body, source, effects);
  }
  void deliver(int source, std::uint64_t tag, const char* text) {
    auto body = begin(source, tag);
    fill(body, source, text);
  }
  bool can_accept(std::uint64_t tag, std::uint64_t bytes) const {
    return matcher.can_accept({.channel = channel, .tag = tag, .bytes = bytes}, 1);
  }
  void expect_ended(const ReceivePtr& receive, OutcomeKind kind, const std::string& text = "", int source = -1) {
    ASSERT_FALSE(effects.completions.empty());
    const auto completion = effects.completions.front();
    effects.completions.erase(effects.completions.begin());
    EXPECT_EQ(completion.message, receive);
    EXPECT_EQ(completion.outcome.kind, kind);
    if (kind != OutcomeKind::completed) return;
    if (completion.bytes) std::memcpy(receive->bytes.data(), completion.bytes.get(), receive->bytes.size());
    EXPECT_EQ(receive->text(), text);
    EXPECT_EQ(completion.outcome.source, source);
  }
  void expect_reply(int rank, FrameKind kind, std::uint64_t id, std::uint64_t bytes = 0) {
    ASSERT_FALSE(effects.replies.empty());
    const auto [to, header] = effects.replies.front();
    effects.replies.erase(effects.replies.begin());
    EXPECT_EQ(to, rank);
    EXPECT_EQ(header.kind, kind);
    EXPECT_EQ(header.id, id);
    EXPECT_EQ(header.bytes, bytes);
    EXPECT_TRUE(header.is_valid());
  }

  Matcher matcher{3 * Matcher::entry_bytes + 10};
  Effects effects;
  Body body_;
};

TEST_F(MatcherTest, MatchesByTagAndSourceInOrder) {
  deliver(1, 0, "one ");
  deliver(1, 5, "five");
  deliver(1, 0, "two ");
  const auto five = receive_from(1, 5);
  const auto first = receive_from(1);
  const auto second = receive_from(any_source);
  const auto third = receive_from(any_source);
  for (const auto& receive : {five, first, second, third}) matcher.receive(receive, effects);
  deliver(2, 0, "else");
  expect_ended(five, OutcomeKind::completed, "five", 1);
  expect_ended(first, OutcomeKind::completed, "one ", 1);
  expect_ended(second, OutcomeKind::completed, "two ", 1);
  expect_ended(third, OutcomeKind::completed, "else", 2);
}

TEST_F(MatcherTest, AReceiveMatchesAMessageThatIsStillArriving) {
  auto body = begin(1, 0);
  const auto late = receive_from(1);
  matcher.receive(late, effects);
  EXPECT_TRUE(effects.completions.empty());
  fill(body, 1, "here");
  expect_ended(late, OutcomeKind::completed, "here", 1);
}

TEST_F(MatcherTest, AWrongLengthFailsTheReceiveAndNotTheNextOne) {
  const auto wrong = receive_from(1);
  const auto right = receive_from(1);
  matcher.receive(wrong, effects);
  matcher.receive(right, effects);
  auto body = begin(1, 0, 2);
  EXPECT_EQ(body.to, nullptr);
  expect_ended(wrong, OutcomeKind::mismatch);
  fill(body, 1, "no");
  deliver(1, 0, "next");
  expect_ended(right, OutcomeKind::completed, "next", 1);
}

TEST_F(MatcherTest, ALostConnectionFailsItsReceives) {
  deliver(1, 0, "last");
  auto half = begin(1, 0);
  const auto other_tag = receive_from(1, 3);
  const auto last = receive_from(1);
  const auto broken = receive_from(1);
  const auto other_rank = receive_from(2);
  for (const auto& receive : {other_tag, last, broken, other_rank}) matcher.receive(receive, effects);
  expect_ended(last, OutcomeKind::completed, "last", 1);
  matcher.on_disconnect(1, half, {.kind = OutcomeKind::disconnected}, effects);
  expect_ended(broken, OutcomeKind::disconnected);
  expect_ended(other_tag, OutcomeKind::disconnected);
  const auto after = receive_from(1);
  matcher.receive(after, effects);
  expect_ended(after, OutcomeKind::disconnected);
  EXPECT_TRUE(effects.completions.empty());
}

TEST_F(MatcherTest, WhatCameBeforeTheEndIsStillReceived) {
  deliver(1, 0, "last");
  matcher.on_disconnect(1, body_, {.kind = OutcomeKind::disconnected}, effects);
  const auto last = receive_from(1);
  matcher.receive(last, effects);
  expect_ended(last, OutcomeKind::completed, "last", 1);
}

TEST_F(MatcherTest, ARankThatClosesTheChannelFailsItsReceives) {
  const auto waits = receive_from(1);
  const auto any = receive_from(any_source);
  for (const auto& receive : {waits, any}) matcher.receive(receive, effects);
  EXPECT_TRUE(frame(FrameKind::close, 1, 0));
  expect_ended(waits, OutcomeKind::closed_by_peer);
  EXPECT_EQ(matcher.end_reason(channel, 1).kind, OutcomeKind::closed_by_peer);
  EXPECT_EQ(matcher.end_reason(channel + 1, 1).kind, OutcomeKind::completed);
  EXPECT_TRUE(effects.completions.empty());
}

TEST_F(MatcherTest, UnexpectedMessagesAreLimited) {
  deliver(1, 0, "one ");
  deliver(1, 0, "two ");
  EXPECT_TRUE(can_accept(0, 2));
  EXPECT_FALSE(can_accept(0, 3));
  matcher.receive(receive_from(1, 5), effects);
  EXPECT_TRUE(can_accept(5, 3));
  EXPECT_FALSE(can_accept(0, 3));
  matcher.receive(receive_from(1), effects);
  EXPECT_TRUE(can_accept(0, 6));
  auto half = begin(1, 0, 6);
  EXPECT_FALSE(can_accept(0, 1));
  matcher.on_disconnect(1, half, {.kind = OutcomeKind::disconnected}, effects);
  EXPECT_TRUE(can_accept(0, 6));
  matcher.close_channel({.channel = channel}, effects);
  EXPECT_TRUE(can_accept(0, 1000)) << "it is discarded";
}

TEST_F(MatcherTest, AnAnnouncedMessageIsPulledWhileThereIsMemory) {
  EXPECT_TRUE(frame(FrameKind::announce, 1, 1, 4));
  expect_reply(1, FrameKind::pull, 1);
  EXPECT_TRUE(frame(FrameKind::announce, 1, 2, 4));
  expect_reply(1, FrameKind::pull, 2);
  EXPECT_TRUE(frame(FrameKind::announce, 1, 3, 4));
  EXPECT_TRUE(effects.replies.empty()) << "no memory is left for it";
  const auto early = receive_from(1);
  const auto late = receive_from(1);
  const auto removed = receive_from(1);
  matcher.receive(early, effects);
  EXPECT_TRUE(frame(FrameKind::payload, 1, 1, 4));
  fill(body_, 1, "one ");
  expect_ended(early, OutcomeKind::completed, "one ", 1);
  matcher.receive(removed, effects);
  EXPECT_TRUE(matcher.remove(*removed));
  EXPECT_TRUE(frame(FrameKind::payload, 1, 2, 4));
  fill(body_, 1, "two ");
  matcher.receive(late, effects);
  expect_reply(1, FrameKind::pull, 3);
  EXPECT_TRUE(frame(FrameKind::payload, 1, 3, 4));
  fill(body_, 1, "last");
  expect_ended(late, OutcomeKind::completed, "last", 1);
}

TEST_F(MatcherTest, AnIdIsAnnouncedOnce) {
  const auto waits = receive_from(1);
  matcher.receive(waits, effects);
  EXPECT_TRUE(frame(FrameKind::announce, 1, 1, 4));
  EXPECT_FALSE(frame(FrameKind::announce, 1, 1, 4));
  EXPECT_TRUE(frame(FrameKind::announce, 2, 1, 4)) << "of another rank";
  matcher.on_disconnect(1, body_, {.kind = OutcomeKind::disconnected}, effects);
  expect_ended(waits, OutcomeKind::disconnected);
}

TEST_F(MatcherTest, APulledMessageThatIsWithdrawnLeavesItsMemory) {
  for (std::uint64_t id = 1; id <= 5; ++id) {
    EXPECT_TRUE(frame(FrameKind::announce, 1, id, 10));
    expect_reply(1, FrameKind::pull, id);
    EXPECT_TRUE(frame(FrameKind::withdraw, 1, id));
  }
}

TEST_F(MatcherTest, AWithdrawalWithAnotherChannelEndsItsMessage) {
  EXPECT_TRUE(frame(FrameKind::announce, 1, 1, 4));
  EXPECT_TRUE(matcher.on_frame({.kind = FrameKind::withdraw, .channel = channel + 1, .id = 1}, 1, body_, effects));
  const auto receive = receive_from(1);
  matcher.receive(receive, effects);
  EXPECT_TRUE(matcher.remove(*receive)) << "it waits for the next message";
}

class FullMatcherTest : public MatcherTest {
 protected:
  FullMatcherTest() { deliver(9, 9, std::string(2 * Matcher::entry_bytes + 10, 'x')); }
  void deliver(int source, std::uint64_t tag, const std::string& text) {
    auto body = begin(source, tag, text.size());
    fill(body, source, text.c_str());
  }
};

TEST_F(FullMatcherTest, AnAnnouncedMessageIsPulledByItsReceive) {
  constexpr std::uint64_t id = 3;
  EXPECT_TRUE(frame(FrameKind::announce, 1, id, 4));
  EXPECT_FALSE(frame(FrameKind::payload, 1, id, 4)) << "it was not pulled";
  const auto receive = receive_from(1);
  matcher.receive(receive, effects);
  expect_reply(1, FrameKind::pull, id);
  EXPECT_TRUE(frame(FrameKind::payload, 1, id, 4));
  fill(body_, 1, "late");
  expect_ended(receive, OutcomeKind::completed, "late", 1);
  EXPECT_FALSE(frame(FrameKind::payload, 1, id, 4)) << "twice";
}

TEST_F(FullMatcherTest, AnAnnouncedMessageCanBeWithdrawn) {
  EXPECT_TRUE(frame(FrameKind::announce, 1, 1, 4));
  EXPECT_TRUE(frame(FrameKind::withdraw, 1, 1));
  const auto receive = receive_from(1);
  matcher.receive(receive, effects);
  EXPECT_TRUE(effects.replies.empty());
  EXPECT_TRUE(frame(FrameKind::announce, 1, 2, 4));
  expect_reply(1, FrameKind::pull, 2);
  EXPECT_TRUE(frame(FrameKind::withdraw, 1, 2));
  expect_ended(receive, OutcomeKind::withdrawn);
}

TEST_F(FullMatcherTest, AnAnnouncedMessageThatDoesNotFitIsRefused) {
  EXPECT_TRUE(frame(FrameKind::announce, 1, 1, 5));
  const auto wrong = receive_from(1);
  matcher.receive(wrong, effects);
  expect_ended(wrong, OutcomeKind::mismatch);
  expect_reply(1, FrameKind::refuse, 1, 4);
  EXPECT_TRUE(frame(FrameKind::announce, 1, 2, 5));
  matcher.close_channel({.channel = channel}, effects);
  expect_reply(1, FrameKind::refuse, 2, FrameHeader::channel_closed);
  EXPECT_TRUE(frame(FrameKind::announce, 1, 3, 5));
  expect_reply(1, FrameKind::refuse, 3, FrameHeader::channel_closed);
}

TEST_F(MatcherTest, ARemovedReceiveIsNotTouched) {
  const auto waits = receive_from(1);
  matcher.receive(waits, effects);
  EXPECT_TRUE(matcher.remove(*waits));
  EXPECT_FALSE(matcher.remove(*waits));
  deliver(1, 0, "late");
  const auto pulls = receive_from(1, 1);
  matcher.receive(pulls, effects);
  EXPECT_TRUE(matcher.on_frame({.kind = FrameKind::announce, .channel = channel, .tag = 1, .bytes = 4, .id = 1}, 1,
                               body_, effects));
  EXPECT_TRUE(matcher.remove(*pulls));
  EXPECT_TRUE(frame(FrameKind::payload, 1, 1, 4));
  EXPECT_EQ(body_.to, nullptr);
  EXPECT_TRUE(effects.completions.empty());
}

TEST_F(MatcherTest, AClosedChannelAcceptsNothing) {
  const auto waits = receive_from(1);
  matcher.receive(waits, effects);
  EXPECT_TRUE(matcher.close_channel({.channel = channel}, effects));
  EXPECT_FALSE(matcher.close_channel({.channel = channel}, effects));
  expect_ended(waits, OutcomeKind::closed);
  deliver(1, 0, "gone");
  const auto later = receive_from(1);
  matcher.receive(later, effects);
  expect_ended(later, OutcomeKind::closed);
}

}  // namespace
}  // namespace tutti::test::matcher_test
