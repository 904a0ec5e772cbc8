// Ranks: event loops in one process, and clients that are no ranks or send damaged frames.
#include "comm/transport/tcp/event_loop.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <future>
#include <list>
#include <random>
#include <string>

#include "coordinator/tls_session.h"
#include "event_loop_fixture.h"
#include "support/socket_bytes.h"
#include "tutti/core/error.h"

namespace tutti::test::event_loop_test {
namespace {

using namespace event_loops;

/// The same with connections that are not encrypted, and with encrypted ones.
class PlainAndEncrypted : public EventLoops, public testing::WithParamInterface<bool> {
 protected:
  PlainAndEncrypted() { encrypts_ = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(EventLoops, PlainAndEncrypted, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Encrypted" : "Plain"; });

TEST_P(PlainAndEncrypted, DeliverMessagesOfAllSizes) {
  for (const auto& known : {JobSecretPtr(), secret()}) {
    endpoints_ = TestEndpoints(3);
    const auto to = make_endpoint(0, known);
    const auto from = make_endpoint(1, known);
    for (const std::size_t length : {0, 4, 100'000, 4 << 20, (4 << 20) + 1, 20'000'000})
      check_exchange(*to, *from, length);
  }
}

// Each rank begins with a send, so both connect at once.
TEST_P(PlainAndEncrypted, TwoRanksThatConnectToEachOtherKeepOneConnection) {
  for (int round = 0; round < 50; ++round) {
    endpoints_ = TestEndpoints(3);
    const auto zero = make_endpoint(0);
    const auto one = make_endpoint(1);
    std::vector<TestMessagePtr> messages;
    auto sends = std::async(std::launch::async, [&] { return post(*one, make_message(true, 0, "to 0")); });
    messages.push_back(post(*zero, make_message(true, 1, "to 1")));
    messages.push_back(sends.get());
    messages.push_back(post(*zero, make_message(false, 1, "----")));
    messages.push_back(post(*one, make_message(false, 0, "----")));
    for (const auto& message : messages) ASSERT_EQ(message->wait(), OutcomeKind::completed) << round;
    EXPECT_EQ(messages[2]->text, "to 0");
    EXPECT_EQ(messages[3]->text, "to 1");
  }
}

// As behind a firewall that drops the packets of one direction.
TEST_P(PlainAndEncrypted, ARankWhoseConnectionGetsNoAnswerTakesThatOfItsPeer) {
  const auto deaf = listen_tcp("127.0.0.1");
  ASSERT_EQ(::listen(deaf.socket.get(), 0), 0);
  const EndpointAddress to_one = *EndpointAddress::from_text(endpoints_.address_of(1));
  const EndpointAddress to_deaf{deaf.address, to_one.nonce};
  const RawClient fills_its_queue(to_deaf.to_text());
  endpoints_.set_address(1, to_deaf.to_text());
  const auto zero = make_endpoint(0);
  const auto one = make_endpoint(1);
  const auto sent = post(*zero, make_message(true, 1, "to 1"));
  check_exchange(*zero, *one, 10);
  const auto received = post(*one, make_message(false, 0, "----"));
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
  EXPECT_EQ(sent->wait(), OutcomeKind::completed);
}

TEST_P(PlainAndEncrypted, RefuseARankWithAnotherSecret) {
  const auto to = make_endpoint(0, secret());
  const auto from = make_endpoint(1, secret("the secret of another job"));
  const auto sent = post(*from, make_message(true, 0, "text"));
  EXPECT_EQ(sent->wait(), OutcomeKind::not_authenticated);
}

TEST_P(PlainAndEncrypted, AMessageThatNoReceiveMatchesBlocksNoLaterOne) {
  const auto to = make_endpoint(0);
  const auto from = make_endpoint(1);
  const std::size_t too_much = (std::size_t{1} << 30) + 1;  // its memory is never touched
  const std::unique_ptr<void, decltype(&std::free)> memory(std::calloc(too_much, 1), &std::free);
  const auto unexpected = make_message(true, 0, "", 5);
  unexpected->memory = {static_cast<std::byte*>(memory.get()), too_much};
  post(*from, unexpected);
  check_exchange(*to, *from, 100'000, 6);
  EXPECT_TRUE(from->loop().cancel(unexpected));
}

TEST_P(PlainAndEncrypted, ALongSendEndsBeforeItsReceive) {
  const auto to = make_endpoint(0);
  const auto from = make_endpoint(1);
  const std::string text(20'000'000, 'x');
  EXPECT_EQ(post(*from, make_message(true, 0, text))->wait(), OutcomeKind::completed);
  const auto received = post(*to, make_message(false, 1, std::string(text.size(), '-')));
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
  EXPECT_TRUE(received->text == text);
}

TEST_P(PlainAndEncrypted, AMessageOfTheWrongSizeFailsBothSides) {
  const auto to = make_endpoint(0);
  const auto from = make_endpoint(1);
  auto received = post(*to, make_message(false, 1, "four"));
  auto sent = post(*from, make_message(true, 0, std::string(5'000'000, 'x')));
  EXPECT_EQ(received->wait(), OutcomeKind::mismatch);
  EXPECT_EQ(sent->wait(), OutcomeKind::mismatch);
  received = post(*to, make_message(false, 1, "four"));
  sent = post(*from, make_message(true, 0, "fives"));
  EXPECT_EQ(received->wait(), OutcomeKind::mismatch);
  check_exchange(*to, *from, 10);
}

// Some sends have begun when they are cancelled.
TEST_P(PlainAndEncrypted, ACancelledMessageGivesItsMemoryBackAndTheConnectionGoesOn) {
  const auto to = make_endpoint(0);
  const auto from = make_endpoint(1);
  check_exchange(*to, *from, 10);
  for (int round = 0; round < 20; ++round) {
    std::vector<TestMessagePtr> sends;
    for (std::uint64_t tag = 1; tag <= 5; ++tag)
      sends.push_back(post(*from, make_message(true, 0, std::string(max_eager_bytes, 'x'), tag)));
    const auto received = post(*to, make_message(false, 1, std::string(max_eager_bytes, '-'), 2));
    for (const auto& sent : sends) {
      if (from->loop().cancel(sent)) sent->text.assign(sent->text.size(), '!');
    }
    if (to->loop().cancel(received)) {
      const std::string before = received->text;
      check_exchange(*to, *from, 10);
      EXPECT_TRUE(received->text == before);
    } else {
      EXPECT_EQ(received->wait(), OutcomeKind::completed);
    }
    check_exchange(*to, *from, 10);
  }
}

TEST_F(EventLoops, ADeadlineEndsAMessage) {
  const auto to = make_endpoint(0);
  const auto message = make_message(false, 1, "none");
  message->deadline = Clock::now() + 20ms;
  EXPECT_EQ(post(*to, message)->wait(), OutcomeKind::timed_out);
}

TEST_P(PlainAndEncrypted, ADestroyedEndpointFailsTheMessagesOfItsPeer) {
  const auto to = make_endpoint(0);
  auto from = make_endpoint(1);
  check_exchange(*to, *from, 10);
  const auto received = post(*to, make_message(false, 1, "none"));
  const auto last = post(*from, make_message(true, 0, "last", 1));
  from.reset();
  EXPECT_EQ(received->wait(), OutcomeKind::disconnected);
  EXPECT_EQ(post(*to, make_message(false, 1, "----", 1))->wait(), OutcomeKind::completed);
}

// The client has read the store and sends everything that a rank sends, except the proof.
TEST_F(EventLoops, RefuseAClientThatKnowsTheAddressAndNotTheSecret) {
  const auto to = make_endpoint(0, secret());
  RawClient client(endpoints_.address_of(0));
  const Hello hello{.nonce = client.address().nonce, .rank = 1};
  std::string bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
  bytes.append(200, 'x');
  client.send(std::as_bytes(std::span(bytes)));
  client.expect_closed();
  const auto from = make_endpoint(1, secret());
  check_exchange(*to, *from, 10);
}

// They have the same secret.
TEST_F(EventLoops, ARankThatEncryptsAndOneThatDoesNotRefuseEachOther) {
  for (const bool encrypts : {false, true}) {
    endpoints_ = TestEndpoints(3);
    encrypts_ = encrypts;
    const auto to = make_endpoint(0, secret());
    encrypts_ = !encrypts;
    const auto from = make_endpoint(1, secret());
    EXPECT_EQ(post(*from, make_message(true, 0, "text"))->wait(), OutcomeKind::not_authenticated);
  }
}

// A rank's first frames may arrive with its verdict, in one read.
TEST_F(EventLoops, FramesBehindTheVerdictAreReceived) {
  const std::string text(1000, 'x');
  const auto listening = listen_tcp("127.0.0.1");
  endpoints_.set_address(0, EndpointAddress{listening.address, {}}.to_text());
  const auto connects = make_endpoint(1, secret());
  const auto received = post(*connects, make_message(false, 0, std::string(text.size(), '-')));

  const coordinator::TlsContext context(*secret(), coordinator::Side::server, "messages");
  coordinator::TlsSession session(context);
  const auto wait_for = [](const FileDescriptor& socket, short events) {
    pollfd ready{.fd = socket.get(), .events = events, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
  };
  wait_for(listening.socket, POLLIN);
  const auto socket = *try_accept(listening.socket);
  Hello hello;
  std::string bytes;
  while (session.decrypt(std::as_writable_bytes(std::span(&hello, 1))) == 0) {
    std::array<std::byte, 1000> part{};
    wait_for(socket, POLLIN);
    session.receive(std::span(part).first(test::try_read(socket, part).value()));
    session.handshake(bytes);
    ASSERT_EQ(test::try_write(socket, std::as_bytes(std::span(bytes))), bytes.size());
    bytes.clear();
  }
  EXPECT_EQ(hello.rank, 1);
  const auto verdict = Verdict::accepted;
  const FrameHeader header{.channel = channel, .bytes = text.size()};
  ASSERT_TRUE(session.encrypt(std::as_bytes(std::span(&verdict, 1)), bytes));
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(text);
  ASSERT_EQ(test::try_write(socket, std::as_bytes(std::span(bytes))), bytes.size());
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
  EXPECT_TRUE(received->text == text);
}

// Its machine takes no more bytes, and acknowledges the probes.
TEST_F(EventLoops, KeepTheConnectionToARankThatIsLate) {
  endpoints_.acknowledgement_timeout = 200ms;
  const auto zero = make_endpoint(0);
  RawClient one(endpoints_.address_of(0));
  one.greet(1);
  std::vector<TestMessagePtr> sent;  // more than the sockets hold
  for (int i = 0; i < 8; ++i) sent.push_back(post(*zero, make_message(true, 1, std::string(max_eager_bytes, 'x'))));
  EXPECT_EQ(sent.back()->ended.wait_for(5 * endpoints_.acknowledgement_timeout), std::future_status::timeout);
  one.skip(sent.size() * (sizeof(FrameHeader) + max_eager_bytes));
  for (const auto& message : sent) EXPECT_EQ(message->wait(), OutcomeKind::completed);
}

TEST_F(EventLoops, TimeOutAConnectionThatThePeerWillMakeAndDoesNot) {
  endpoints_.acknowledgement_timeout = 200ms;
  const auto zero = MessageSocket::listen("127.0.0.1");
  endpoints_.set_address(0, zero.to_text());
  const auto one = make_endpoint(1);
  const auto sent = post(*one, make_message(true, 0, "text"));
  pollfd pending{.fd = zero.listening.socket.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&pending, 1, 20'000), 1);
  const auto accepted = try_accept(zero.listening.socket);
  const Verdict verdict = Verdict::duplicate;
  EXPECT_EQ(test::try_write(accepted.value(), std::as_bytes(std::span(&verdict, 1))), sizeof(verdict));
  EXPECT_EQ(sent->wait(), OutcomeKind::network_lost);
}

TEST_F(EventLoops, RefuseAClientWithAWrongNonceOrRank) {
  const auto to = make_endpoint(0);
  const Nonce nonce = RawClient(endpoints_.address_of(0)).address().nonce;
  for (const Hello& hello : {Hello{.nonce = {1, 2}, .rank = 1}, Hello{.nonce = nonce, .rank = 0},
                             Hello{.nonce = nonce, .rank = -1}, Hello{.nonce = nonce, .rank = std::int64_t{1} << 40}}) {
    RawClient client(endpoints_.address_of(0));
    client.send(std::as_bytes(std::span(&hello, 1)));
    client.expect_closed();
  }
  const auto from = make_endpoint(1);
  check_exchange(*to, *from, 10);
}

TEST_P(PlainAndEncrypted, DeliverBesideManyUnauthenticatedClients) {
  const auto to = make_endpoint(0, secret());
  const auto from = make_endpoint(1, secret());
  std::list<RawClient> clients;
  for (int i = 0; i < 300; ++i) {
    clients.emplace_back(endpoints_.address_of(0));
    const std::string words(static_cast<std::size_t>(i), '\xff');
    if (i < 100) clients.back().send(std::as_bytes(std::span(words)));
  }
  check_exchange(*to, *from, 10);
}

// Rank 2 sends damaged frames: its connection ends, and the others go on.
TEST_F(EventLoops, ADamagedFrameEndsItsConnectionOnly) {
  using FrameKind = FrameHeader::Kind;
  const std::vector<FrameHeader> damaged{
      {.kind = FrameKind{0}},
      {.kind = FrameKind{99}},
      {.unused = 1},
      {.bytes = max_eager_bytes + 1},
      {.kind = FrameKind::announce, .bytes = max_message_bytes + 1, .id = 1},
      {.kind = FrameKind::announce, .bytes = 1, .id = 0},
      {.kind = FrameKind::payload, .bytes = 4, .id = 9},
      {.kind = FrameKind::pull, .id = 9},
      {.kind = FrameKind::refuse, .bytes = 9, .id = 9},
      {.kind = FrameKind::close, .bytes = 1},
  };
  for (const FrameHeader& header : damaged) {
    endpoints_ = TestEndpoints(3);
    const auto zero = make_endpoint(0);
    const auto one = make_endpoint(1);
    RawClient two(endpoints_.address_of(0));
    two.greet(2);
    two.send(header);
    two.expect_closed();
    EXPECT_EQ(post(*zero, make_message(false, 2, "----"))->wait(), OutcomeKind::disconnected);
    check_exchange(*zero, *one, 10);
  }
}

// Seeded: valid frames and damaged ones, cut anywhere.
TEST_F(EventLoops, RandomFramesEndTheirConnectionOnly) {
  std::mt19937_64 random(2024);
  for (int round = 0; round < 200; ++round) {
    endpoints_ = TestEndpoints(3);
    const auto zero = make_endpoint(0);
    const auto one = make_endpoint(1);
    TestMessagePtr received;
    {
      RawClient two(endpoints_.address_of(0));
      two.greet(2);
      received = post(*zero, make_message(false, 2, "----", random() % 3));
      for (int frame = 0; frame < 20; ++frame) {
        FrameHeader header{.kind = FrameHeader::Kind{static_cast<std::uint32_t>(random() % 8)},
                           .channel = channel + random() % 2,
                           .tag = random() % 3,
                           .bytes = random() % 5,
                           .id = random() % 4};
        if (header.kind == FrameHeader::Kind::message && random() % 8 > 0) header.id = 0;
        std::vector<std::byte> bytes(sizeof(header) + static_cast<std::size_t>(header.bytes_behind()));
        std::memcpy(bytes.data(), &header, sizeof(header));
        if (random() % 16 == 0) bytes[random() % bytes.size()] ^= std::byte{1} << random() % 8;
        if (random() % 16 == 0) bytes.resize(random() % bytes.size());
        try {
          two.send(bytes);
        } catch (const std::system_error&) {
          break;  // the connection was closed
        }
      }
    }
    EXPECT_NE(received->wait(), OutcomeKind::timed_out) << round;
    check_exchange(*zero, *one, 1000, 9);
  }
}

}  // namespace
}  // namespace tutti::test::event_loop_test
