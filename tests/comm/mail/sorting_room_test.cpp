// Ranks: none. Which message goes to which receive.
#include "comm/mail/sorting_room.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::test::sorting_room_test {
namespace {

using namespace tutti::comm;

constexpr std::uint64_t group = 7;
const Deadline start{};

struct Receive {
  std::array<char, 4> memory{};
  OrderPtr order = std::make_shared<Order>();

  explicit Receive(int peer, int tag = 0) {
    order->what = "receive";
    order->peer = peer;
    order->tag = tag;
    order->memory = std::as_writable_bytes(std::span(memory));
    order->deadline = start + std::chrono::hours(1);
    order->peer_is_gone = [] { return false; };
  }
  std::string text() const { return {memory.data(), memory.size()}; }
};

class SortingRoomTest : public testing::Test {
 protected:
  std::optional<Body> begin(int source, int tag, std::size_t bytes = 4) {
    return room.begin({.tag = tag, .group = group, .source = source, .bytes = bytes}, source, ended);
  }
  bool has_room_for(int tag, std::size_t bytes) {
    return room.has_room_for({.tag = tag, .group = group, .source = 1, .bytes = bytes});
  }
  void fill(Body& body, const char* text) {
    std::memcpy(body.to.data(), text, body.to.size());
    room.complete(body, ended);
  }
  void come(int source, int tag, const char* text) {
    auto body = begin(source, tag);
    fill(*body, text);
  }
  void expect_ended(const Receive& receive, const std::string& text, int source) {
    ASSERT_FALSE(ended.empty());
    EXPECT_EQ(ended.front().order, receive.order);
    EXPECT_EQ(ended.front().failure, nullptr);
    EXPECT_EQ(receive.text(), text);
    EXPECT_EQ(ended.front().source, source);
    ended.erase(ended.begin());
  }
  template <typename T>
  std::string failure_of(const Receive& receive) {
    if (ended.empty() || ended.front().order != receive.order) return "it has not ended";
    const auto failure = ended.front().failure;
    ended.erase(ended.begin());
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const T& error) {
      return error.what();
    }
    return "it ended well";
  }

  SortingRoom room{10};
  AllEnded ended;
};

TEST_F(SortingRoomTest, ByTagAndSourceInOrder) {
  come(1, 0, "one ");
  come(1, 5, "five");
  come(1, 0, "two ");
  come(2, 0, "else");
  Receive five(1, 5);
  Receive first(1);
  Receive second(any_source);
  Receive third(any_source);
  for (auto* receive : {&five, &first, &second, &third}) room.receive(group, receive->order, ended);
  expect_ended(five, "five", 1);
  expect_ended(first, "one ", 1);
  expect_ended(second, "two ", 1);
  expect_ended(third, "else", 2);
}

TEST_F(SortingRoomTest, AReceiveTakesWhatIsStillComing) {
  auto body = begin(1, 0);
  Receive late(1);
  room.receive(group, late.order, ended);
  EXPECT_TRUE(ended.empty());
  fill(*body, "here");
  expect_ended(late, "here", 1);
}

TEST_F(SortingRoomTest, AnotherLengthEndsTheReceiveAndNotTheNextOne) {
  Receive wrong(1);
  Receive right(1);
  room.receive(group, wrong.order, ended);
  room.receive(group, right.order, ended);
  auto body = begin(1, 0, 2);
  EXPECT_EQ(failure_of<Divergence>(wrong),
            "receive: rank 1 sent 2 bytes, and this rank takes 4. The message is dropped.");
  room.complete(*body, ended);
  come(1, 0, "next");
  expect_ended(right, "next", 1);
}

TEST_F(SortingRoomTest, ALostConnectionEndsWhatWaitsForIt) {
  come(1, 0, "last");
  auto half = begin(1, 0);
  Receive other_tag(1, 3);
  Receive last(1);
  Receive broken(1);
  for (auto* receive : {&other_tag, &last, &broken}) room.receive(group, receive->order, ended);
  expect_ended(last, "last", 1);
  room.lose(1, &*half, ended);
  EXPECT_EQ(failure_of<PeerFailure>(broken), "receive: rank 1 is gone (connection closed)");
  EXPECT_EQ(failure_of<PeerFailure>(other_tag), "receive: rank 1 is gone (connection closed)");
  Receive after(1);
  room.receive(group, after.order, ended);
  EXPECT_EQ(failure_of<PeerFailure>(after), "receive: rank 1 is gone (connection closed)");
}

TEST_F(SortingRoomTest, DeadlinesAlsoInTheMiddleOfAMessage) {
  Receive waits(2);
  Receive reads(1);
  waits.order->timeout = reads.order->timeout = std::chrono::seconds(2);
  waits.order->deadline = reads.order->deadline = start + std::chrono::seconds(2);
  room.receive(group, waits.order, ended);
  room.receive(group, reads.order, ended);
  auto body = begin(1, 0);
  EXPECT_EQ(room.next_deadline(), start + std::chrono::seconds(2));
  room.look(start + std::chrono::seconds(1), true, ended);
  SortingRoom::look(*body, start + std::chrono::seconds(1), ended);
  EXPECT_TRUE(ended.empty());
  room.look(start + std::chrono::seconds(2), true, ended);
  SortingRoom::look(*body, start + std::chrono::seconds(2), ended);
  EXPECT_EQ(failure_of<Timeout>(waits), "receive: nothing came from rank 2 within 2 s");
  EXPECT_EQ(failure_of<Timeout>(reads), "receive: nothing came from rank 1 within 2 s");
  fill(*body, "lost");
  EXPECT_TRUE(ended.empty());
  EXPECT_EQ(reads.memory, (std::array<char, 4>{}));
}

TEST_F(SortingRoomTest, WhatNobodyAskedForHasLittleRoom) {
  come(1, 0, "one ");
  come(1, 0, "two ");
  EXPECT_TRUE(has_room_for(0, 2));
  EXPECT_FALSE(has_room_for(0, 3));
  EXPECT_FALSE(has_room_for(0, ~std::size_t{0}));

  Receive other_tag(1, 5);
  room.receive(group, other_tag.order, ended);
  EXPECT_TRUE(has_room_for(5, 3));
  EXPECT_FALSE(has_room_for(0, 3));

  Receive first(1);
  room.receive(group, first.order, ended);
  expect_ended(first, "one ", 1);
  EXPECT_TRUE(has_room_for(0, 6));
  auto half = begin(1, 0, 6);
  EXPECT_FALSE(has_room_for(0, 1));
  room.lose(1, &*half, ended);
  EXPECT_TRUE(has_room_for(0, 6));
  room.end(group, std::make_exception_ptr(PeerFailure("it is over", {})), ended);
  EXPECT_TRUE(has_room_for(0, 1000)) << "it is thrown away";
}

TEST_F(SortingRoomTest, NobodysMessageTakesLittleMemoryAndIsReadWhole) {
  Receive wrong(1);
  room.receive(group, wrong.order, ended);
  constexpr std::size_t bytes = 1'000'001;
  auto body = begin(1, 0, bytes);
  EXPECT_LE(body->to.size(), 100'000U);
  std::size_t read = body->to.size();
  while (body->next_piece()) read += body->to.size();
  EXPECT_EQ(read, bytes);
}

TEST_F(SortingRoomTest, AnEndedGroupTakesNothing) {
  Receive waits(1);
  room.receive(group, waits.order, ended);
  const auto failure = std::make_exception_ptr(PeerFailure("it is over", {}));
  EXPECT_TRUE(room.end(group, failure, ended));
  EXPECT_FALSE(room.end(group, failure, ended));
  EXPECT_EQ(failure_of<PeerFailure>(waits), "it is over");
  come(1, 0, "gone");
  Receive later(1);
  room.receive(group, later.order, ended);
  EXPECT_EQ(failure_of<PeerFailure>(later), "it is over");
}

}  // namespace
}  // namespace tutti::test::sorting_room_test
