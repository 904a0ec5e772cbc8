// Ranks: none. Matching of messages and receives.
#include "comm/p2p/tag_matcher.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::test::tag_matcher_test {
namespace {

using namespace tutti::comm;

constexpr std::uint64_t group = 7;
const Deadline start{};

struct Receive {
  std::array<char, 4> memory{};
  RequestPtr request = std::make_shared<Request>();

  explicit Receive(int peer, int tag = 0) {
    request->description = "receive";
    request->peer = peer;
    request->tag = tag;
    request->memory = std::as_writable_bytes(std::span(memory));
    request->deadline = start + std::chrono::hours(1);
    request->peer_has_exited = [] { return false; };
  }
  std::string text() const { return {memory.data(), memory.size()}; }
};

class TagMatcherTest : public testing::Test {
 protected:
  std::optional<Body> begin(int source, int tag, std::size_t bytes = 4) {
    return matcher.on_header({.tag = tag, .group = group, .source = source, .bytes = bytes}, source, completions);
  }
  bool can_accept(int tag, std::size_t bytes) {
    return matcher.can_accept({.tag = tag, .group = group, .source = 1, .bytes = bytes});
  }
  void fill(Body& body, const char* text) {
    std::memcpy(body.to.data(), text, body.to.size());
    matcher.on_body(body, completions);
  }
  void deliver(int source, int tag, const char* text) {
    auto body = begin(source, tag);
    fill(*body, text);
  }
  void expect_ended(const Receive& receive, const std::string& text, int source) {
    ASSERT_FALSE(completions.empty());
    EXPECT_EQ(completions.front().request, receive.request);
    EXPECT_EQ(completions.front().failure, nullptr);
    EXPECT_EQ(receive.text(), text);
    EXPECT_EQ(completions.front().source, source);
    completions.erase(completions.begin());
  }
  template <typename T>
  std::string failure_of(const Receive& receive) {
    if (completions.empty() || completions.front().request != receive.request) return "it has not ended";
    const auto failure = completions.front().failure;
    completions.erase(completions.begin());
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const T& error) {
      return error.what();
    }
    return "it ended well";
  }

  TagMatcher matcher{10};
  Completions completions;
};

TEST_F(TagMatcherTest, MatchesByTagAndSourceInOrder) {
  deliver(1, 0, "one ");
  deliver(1, 5, "five");
  deliver(1, 0, "two ");
  deliver(2, 0, "else");
  Receive five(1, 5);
  Receive first(1);
  Receive second(any_source);
  Receive third(any_source);
  for (auto* receive : {&five, &first, &second, &third}) matcher.receive(group, receive->request, completions);
  expect_ended(five, "five", 1);
  expect_ended(first, "one ", 1);
  expect_ended(second, "two ", 1);
  expect_ended(third, "else", 2);
}

TEST_F(TagMatcherTest, AReceiveMatchesAMessageThatIsStillArriving) {
  auto body = begin(1, 0);
  Receive late(1);
  matcher.receive(group, late.request, completions);
  EXPECT_TRUE(completions.empty());
  fill(*body, "here");
  expect_ended(late, "here", 1);
}

TEST_F(TagMatcherTest, AWrongLengthFailsTheReceiveAndNotTheNextOne) {
  Receive wrong(1);
  Receive right(1);
  matcher.receive(group, wrong.request, completions);
  matcher.receive(group, right.request, completions);
  auto body = begin(1, 0, 2);
  EXPECT_EQ(failure_of<MismatchError>(wrong),
            "receive: rank 1 sent 2 bytes, but this rank expects 4. The message is dropped.");
  matcher.on_body(*body, completions);
  deliver(1, 0, "next");
  expect_ended(right, "next", 1);
}

TEST_F(TagMatcherTest, ALostConnectionFailsItsReceives) {
  deliver(1, 0, "last");
  auto half = begin(1, 0);
  Receive other_tag(1, 3);
  Receive last(1);
  Receive broken(1);
  for (auto* receive : {&other_tag, &last, &broken}) matcher.receive(group, receive->request, completions);
  expect_ended(last, "last", 1);
  matcher.on_disconnect(1, &*half, completions);
  EXPECT_EQ(failure_of<PeerError>(broken), "receive: rank 1 disconnected (connection closed)");
  EXPECT_EQ(failure_of<PeerError>(other_tag), "receive: rank 1 disconnected (connection closed)");
  Receive after(1);
  matcher.receive(group, after.request, completions);
  EXPECT_EQ(failure_of<PeerError>(after), "receive: rank 1 disconnected (connection closed)");
}

TEST_F(TagMatcherTest, DeadlinesApplyInTheMiddleOfAMessage) {
  Receive waits(2);
  Receive reads(1);
  waits.request->timeout = reads.request->timeout = std::chrono::seconds(2);
  waits.request->deadline = reads.request->deadline = start + std::chrono::seconds(2);
  matcher.receive(group, waits.request, completions);
  matcher.receive(group, reads.request, completions);
  auto body = begin(1, 0);
  EXPECT_EQ(matcher.next_deadline(), start + std::chrono::seconds(2));
  matcher.expire(start + std::chrono::seconds(1), true, completions);
  TagMatcher::expire(*body, start + std::chrono::seconds(1), completions);
  EXPECT_TRUE(completions.empty());
  matcher.expire(start + std::chrono::seconds(2), true, completions);
  TagMatcher::expire(*body, start + std::chrono::seconds(2), completions);
  EXPECT_EQ(failure_of<TimeoutError>(waits), "receive: no message from rank 2 within 2 s");
  EXPECT_EQ(failure_of<TimeoutError>(reads), "receive: no message from rank 1 within 2 s");
  fill(*body, "lost");
  EXPECT_TRUE(completions.empty());
  EXPECT_EQ(reads.memory, (std::array<char, 4>{}));
}

TEST_F(TagMatcherTest, UnexpectedMessagesAreLimited) {
  deliver(1, 0, "one ");
  deliver(1, 0, "two ");
  EXPECT_TRUE(can_accept(0, 2));
  EXPECT_FALSE(can_accept(0, 3));
  EXPECT_FALSE(can_accept(0, ~std::size_t{0}));

  Receive other_tag(1, 5);
  matcher.receive(group, other_tag.request, completions);
  EXPECT_TRUE(can_accept(5, 3));
  EXPECT_FALSE(can_accept(0, 3));

  Receive first(1);
  matcher.receive(group, first.request, completions);
  expect_ended(first, "one ", 1);
  EXPECT_TRUE(can_accept(0, 6));
  auto half = begin(1, 0, 6);
  EXPECT_FALSE(can_accept(0, 1));
  matcher.on_disconnect(1, &*half, completions);
  EXPECT_TRUE(can_accept(0, 6));
  matcher.close_group(group, std::make_exception_ptr(PeerError("it is over", {})), completions);
  EXPECT_TRUE(can_accept(0, 1000)) << "it is thrown away";
}

TEST_F(TagMatcherTest, ADiscardedMessageTakesLittleMemoryAndIsReadWhole) {
  Receive wrong(1);
  matcher.receive(group, wrong.request, completions);
  constexpr std::size_t bytes = 1'000'001;
  auto body = begin(1, 0, bytes);
  EXPECT_LE(body->to.size(), 100'000U);
  std::size_t read = body->to.size();
  while (body->next_chunk()) read += body->to.size();
  EXPECT_EQ(read, bytes);
}

TEST_F(TagMatcherTest, AClosedGroupAcceptsNothing) {
  Receive waits(1);
  matcher.receive(group, waits.request, completions);
  const auto failure = std::make_exception_ptr(PeerError("it is over", {}));
  EXPECT_TRUE(matcher.close_group(group, failure, completions));
  EXPECT_FALSE(matcher.close_group(group, failure, completions));
  EXPECT_EQ(failure_of<PeerError>(waits), "it is over");
  deliver(1, 0, "gone");
  Receive later(1);
  matcher.receive(group, later.request, completions);
  EXPECT_EQ(failure_of<PeerError>(later), "it is over");
}

}  // namespace
}  // namespace tutti::test::tag_matcher_test
