// Ranks: event loops in one process, and clients that send frames. How messages end whose channel is closed or whose
// peer has failed, and on which thread.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/topology.h"
#include "comm/operation_queue.h"
#include "comm/transport/tcp/request.h"
#include "event_loop_fixture.h"
#include "support/tcp_transports.h"
#include "tutti/core/error.h"

namespace tutti::test::message_ends_test {
namespace {

using namespace event_loops;

constexpr std::uint64_t other_channel = channel + 1;

TestMessagePtr in_channel(std::uint64_t number, TestMessagePtr message) {
  message->channel = number;
  return message;
}

// Rank 0 closes the channel before it is connected, and while it is connected.
TEST_F(EventLoops, AClosedChannelIsToldToPeersThatConnectLater) {
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  const auto two = make_endpoint(2);
  zero->close_channel({.channel = channel, .is_member = bits_of({0, 1, 2})}, true);
  EXPECT_EQ(post(*one, make_message(false, 0, "----"))->wait(), OutcomeKind::closed_by_peer);
  zero->close_channel({.channel = other_channel, .is_member = bits_of({0, 1, 2})}, true);
  for (const auto& rank : {one.get(), two.get()}) {
    EXPECT_EQ(post(*rank, in_channel(other_channel, make_message(false, 0, "----")))->wait(),
              OutcomeKind::closed_by_peer);
  }
}

// Their processes go on.
TEST_F(EventLoops, AReceiveFromAnyRankEndsWhenAllHaveClosedTheChannel) {
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  const auto two = make_endpoint(2);
  const std::vector<int> ranks{0, 1, 2};
  const auto received = make_message(false, any_source, "----");
  received->sources = ranks;
  received->is_peer_gone = [] { return false; };
  post(*zero, received);
  for (const auto& rank : {one.get(), two.get()}) {
    post(*rank, in_channel(other_channel, make_message(true, 0, "text")));  // connects
    EXPECT_FALSE(received->has_ended());
    rank->close_channel({.channel = channel, .is_member = bits_of(ranks)}, true);
  }
  EXPECT_EQ(received->wait(), OutcomeKind::exited);
}

TEST_F(EventLoops, AFailureOfThePeerEndsAMessageThatIsInFlight) {
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  check_exchange(*zero, *one, 10);
  std::atomic<bool> has_failed = false;
  const auto received = make_message(false, 1, "----");
  received->failure_of_peer = [&]() -> std::exception_ptr {
    return has_failed ? std::make_exception_ptr(std::runtime_error("stopped")) : nullptr;
  };
  post(*zero, received);
  has_failed = true;
  EXPECT_EQ(received->wait(), OutcomeKind::peer_failed);
  check_exchange(*zero, *one, 10);
}

/// A message whose completion tells its thread, and then waits.
struct BlockingMessage final : Message {
  std::promise<std::thread::id> thread;
  std::promise<void> may_return;

  void complete(const Outcome&) override {
    thread.set_value(std::this_thread::get_id());
    may_return.get_future().wait();
  }
};

std::shared_ptr<BlockingMessage> blocking_send(int rank, std::string& text) {
  auto message = std::make_shared<BlockingMessage>();
  message->is_send = true;
  message->rank = rank;
  message->channel = channel;
  message->memory = std::as_writable_bytes(std::span(text));
  message->deadline = Clock::now() + 20s;
  return message;
}

// While the loop's thread is in a callback, this thread writes an earlier message together with its own.
TEST_F(EventLoops, CallbacksOfOtherMessagesRunOnTheLoopsThread) {
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  check_exchange(*zero, *one, 10);
  std::string text(100'000, 'x');
  RawClient two(endpoints_.address_of(0));
  two.greet(2);
  constexpr std::size_t sends = 6;  // more than the buffers of the sockets
  for (std::size_t i = 1; i < sends; ++i) post(*zero, make_message(true, 2, std::string(max_eager_bytes, 'x')));
  std::string eager(max_eager_bytes, 'x');
  const auto earlier = blocking_send(2, eager);
  earlier->may_return.set_value();
  zero->loop().post(earlier);
  auto completed = earlier->thread.get_future();

  const auto first = blocking_send(1, text);
  zero->loop().post(first);
  const auto loop_thread = first->thread.get_future().get();
  EXPECT_NE(loop_thread, std::this_thread::get_id());
  auto reads = std::async(std::launch::async, [&] { two.skip(sends * (sizeof(FrameHeader) + max_eager_bytes)); });
  while (reads.wait_for(0s) != std::future_status::ready) post(*zero, make_message(true, 2, "now"));
  EXPECT_NE(completed.wait_for(0s), std::future_status::ready);
  first->may_return.set_value();
  EXPECT_EQ(completed.get(), loop_thread);
}

TEST_F(EventLoops, ADestroyedEndpointDoesNotWaitForAPeerThatReadsNothing) {
  auto zero = make_endpoint(0);
  std::optional<RawClient> two(endpoints_.address_of(0));
  two->greet(2);
  std::vector<TestMessagePtr> sends;
  for (int i = 0; i < 6; ++i) {  // more than the buffers of the sockets
    sends.push_back(make_message(true, 2, std::string(max_eager_bytes, 'x')));
    sends.back()->deadline = Clock::now() + 50ms;
    post(*zero, sends.back());
  }
  EXPECT_EQ(sends.back()->wait(), OutcomeKind::timed_out);
  std::promise<void> destroyed;
  std::thread destroys([&] {
    zero.reset();
    destroyed.set_value();
  });
  EXPECT_EQ(destroyed.get_future().wait_for(20s), std::future_status::ready);
  two.reset();
  destroys.join();
}

// The client's frames come while a callback destroys the endpoint, which then says that it sends nothing more.
TEST_F(EventLoops, ADestroyedEndpointAnswersNoAnnouncement) {
  auto zero = make_endpoint(0);
  RawClient two(endpoints_.address_of(0));
  two.greet(2);
  const auto send_text = [&](std::uint64_t tag, const std::string& text) {
    two.send({.channel = other_channel, .tag = tag, .bytes = text.size()});
    two.send(std::as_bytes(std::span(text)));
  };
  zero->close_channel({.channel = channel, .is_member = bits_of({0, 2})}, false);
  const std::string long_text(100'000, 'x');  // more than one read takes
  const auto short_one = post(*zero, in_channel(other_channel, make_message(false, 2, "----", 2)));
  const auto long_one = post(*zero, in_channel(other_channel, make_message(false, 2, long_text, 3)));
  const auto destroys = in_channel(other_channel, make_message(false, 2, "----", 1));
  std::promise<void> begun;
  std::promise<void> may_destroy;
  destroys->callback = [&] {
    begun.set_value();
    may_destroy.get_future().wait();
    zero = nullptr;
  };
  post(*zero, destroys);
  send_text(1, "text");
  begun.get_future().wait();
  two.send({.kind = FrameHeader::Kind::announce, .channel = channel, .bytes = max_eager_bytes + 1, .id = 1});
  send_text(2, "text");
  send_text(3, long_text);
  may_destroy.set_value();
  EXPECT_EQ(short_one->wait(), OutcomeKind::completed);
  EXPECT_EQ(long_one->wait(), OutcomeKind::completed);
}

/// Leaves this process 16 MiB of memory that it has not mapped, for the object's lifetime.
class LittleMemory {
 public:
  LittleMemory() {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    const auto mapped = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const rlimit limit{.rlim_cur = mapped + (std::size_t{16} << 20), .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~LittleMemory() { ::setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

// The client pulls it and reads its first byte.
TEST_F(EventLoops, ASendThatIsCancelledWithoutMemoryForItsRestEndsTheConnection) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers map memory themselves";
#endif
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  RawClient two(endpoints_.address_of(0));
  two.greet(2);
  const auto sent = post(*zero, make_message(true, 2, std::string(100'000'000, 'x')));
  two.send({.kind = FrameHeader::Kind::pull, .id = 1});
  two.skip(2 * sizeof(FrameHeader) + 1);
  {
    const LittleMemory memory;
    EXPECT_FALSE(zero->loop().cancel(sent));
  }
  EXPECT_EQ(sent->wait(), OutcomeKind::disconnected);
  check_exchange(*zero, *one, 10);
}

/// A receive from any rank, when the communicators of all other ranks have closed.
TestMessagePtr receive_last(const std::vector<int>& sources, std::uint64_t tag = 0) {
  auto message = make_message(false, any_source, "----", tag);
  message->sources = sources;
  message->is_peer_gone = [] { return true; };
  return message;
}

TEST_F(EventLoops, AReceiveFromAnyRankGetsWhatAConnectedRankStillSends) {
  const std::vector<int> all{0, 1, 2};
  const std::vector<int> unconnected{0, 1};
  const auto zero = make_endpoint(0);
  RawClient two(endpoints_.address_of(0));
  two.greet(2);
  const auto send_text = [&](const FrameHeader& header) {
    two.send(header);
    two.send(std::as_bytes(std::span("text", 4)));
  };
  const auto late = post(*zero, receive_last(all));
  EXPECT_EQ(post(*zero, receive_last(unconnected))->wait(), OutcomeKind::exited);
  send_text({.channel = channel, .bytes = 4});
  EXPECT_EQ(late->wait(), OutcomeKind::completed);

  const auto announced = post(*zero, receive_last(all));
  two.send({.kind = FrameHeader::Kind::announce, .channel = channel, .bytes = 4, .id = 1});
  two.send({.kind = FrameHeader::Kind::close, .channel = channel});
  EXPECT_TRUE(two.wait_for(POLLIN));  // the pull
  EXPECT_EQ(post(*zero, receive_last(all, 1))->wait(), OutcomeKind::exited);
  send_text({.kind = FrameHeader::Kind::payload, .channel = channel, .bytes = 4, .id = 1});
  EXPECT_EQ(announced->wait(), OutcomeKind::completed);
}

// The client announces a message and leaves it out. In the group it is rank 0.
TEST_F(EventLoops, AFailedReceiveFromAnyRankNamesTheRankWhoseMessageItHadMatched) {
  const auto zero = make_endpoint(0);
  std::optional<RawClient> two(endpoints_.address_of(0));
  two->greet(2);
  const auto failure_after = [&](std::uint64_t id, const std::function<void()>& leave_out) -> std::string {
    std::string text = "----";
    std::promise<std::exception_ptr> failure;
    const auto request = std::make_shared<Request>();
    request->description = "receive (tag 0)";
    request->channel = channel;
    request->memory = std::as_writable_bytes(std::span(text));
    request->health = std::make_shared<GroupHealth>(nullptr, std::vector<int>{2, 0, 1});
    request->mark_completed = [&](std::exception_ptr how) { failure.set_value(std::move(how)); };
    zero->loop().post(request);
    two->send({.kind = FrameHeader::Kind::announce, .channel = channel, .bytes = 4, .id = id});
    two->skip(sizeof(FrameHeader));  // the pull
    leave_out();
    try {
      std::rethrow_exception(failure.get_future().get());
    } catch (const PeerError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{0});
      return error.what();
    }
  };
  EXPECT_EQ(failure_after(1, [&] { two->send({.kind = FrameHeader::Kind::withdraw, .channel = channel, .id = 1}); }),
            "receive (tag 0): rank 2 stopped sending the message at its deadline");
  EXPECT_EQ(failure_after(2, [&] { two.reset(); }), "receive (tag 0): rank 2 disconnected (connection closed)");
}

// The client's frames are read when its connection is reset: the pull, whose payload cannot be written, and the frames
// behind it. The last one finds no memory.
TEST_F(EventLoops, FramesBehindAFailedWriteAreNotHandled) {
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  std::string text(100'000, 'x');  // written by the loop's thread
  const auto blocks = blocking_send(1, text);
  TestMessagePtr pulled;
  {
    RawClient two(endpoints_.address_of(0));
    two.greet(2);
    pulled = post(*zero, make_message(true, 2, std::string(max_eager_bytes + 1, 'x')));
    EXPECT_TRUE(two.wait_for(POLLIN));  // the announcement, which the client does not read
    zero->loop().post(blocks);
    blocks->thread.get_future().wait();
    constexpr std::uint64_t capacity = std::uint64_t{1} << 30;
    two.send({.kind = FrameHeader::Kind::pull, .id = 1});
    two.send({.kind = FrameHeader::Kind::announce,
              .channel = channel,
              .tag = 1,
              .bytes = capacity - 3 * Matcher::entry_bytes,
              .id = 1});
    two.send({.kind = FrameHeader::Kind::announce, .channel = channel, .bytes = 4, .id = 2});
    two.send({.channel = channel, .tag = 1, .bytes = Matcher::entry_bytes});
  }
  blocks->may_return.set_value();
  EXPECT_EQ(pulled->wait(), OutcomeKind::disconnected);
  const auto received = post(*zero, make_message(false, 2, "----"));
  ASSERT_EQ(received->ended.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(received->wait(), OutcomeKind::disconnected);
  check_exchange(*zero, *one, 10, 9);
}

// Rank 1 may be in the barrier.
TEST_F(EventLoops, AMonitoredBarrierNamesALostCoordinator) {
  const auto events = std::make_shared<JobEvents>(/*owner=*/-1);
  const auto monitor = std::make_shared<HeartbeatMonitor>(
      events, HeartbeatMonitorOptions{.rank = 0, .node_of_rank = {0, 0}, .heartbeat_timeout = 2s});
  const auto p2p = std::make_shared<GroupEndpoint>(std::shared_ptr<Endpoint>(make_endpoint(0)), "job",
                                                   GroupHealth(monitor, {0, 1}), 0);
  auto transports = make_tcp_transports(2);
  auto backend = std::make_shared<P2pBackend>(std::move(transports[0]), make_topology({0, 0}, 0));
  const auto queue = std::make_shared<OperationQueue>(std::move(backend), 20s, "job", Services{.p2p = p2p});
  events->handlers().on_lost(std::nullopt, "the launcher has exited");
  try {
    queue->monitored_barrier(/*wait_for_all=*/false, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("the launcher has exited"), std::string::npos) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{});
  }
}

}  // namespace
}  // namespace tutti::test::message_ends_test
