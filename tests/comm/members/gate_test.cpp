// Ranks: none. A store of c10d behind a gate, members who come to it through a porter, and strangers at the gate.
#include "comm/members/gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <list>
#include <string>
#include <thread>

#include "comm/meeting/local_meeting.h"
#include "comm/members/knock.h"
#include "comm/members/loopback_user.h"

namespace tutti::test::gate_test {
namespace {

using namespace tutti::comm;
using namespace std::chrono_literals;
using Answer = Knocked::Answer;
using Clock = std::chrono::steady_clock;

constexpr const char* here = "127.0.0.1";
constexpr std::size_t greeting_bytes = 16 + 32;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

c10d::TCPStoreOptions options_at(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = 20s;
  return options;
}

FileDescriptor that_does_not_block(int descriptor) {
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  return FileDescriptor(descriptor);
}

/// A job's store, and its gate.
class Job {
 public:
  Job() {
    const auto inner = listen_on_loopback();
    auto options = options_at(inner.port);
    options.isServer = true;
    options.masterListenFd = inner.descriptor;
    store_ = c10::make_intrusive<c10d::TCPStore>(here, options);
    const auto outer = listen_on_loopback();
    gate_port_ = outer.port;
    gate_ = std::make_unique<Gate>(Gate::Plan{.listening = that_does_not_block(outer.descriptor),
                                              .onward = {here, inner.port},
                                              .proof = Passage::Proof::asked,
                                              .secret = secret(),
                                              .subject = "store"});
  }

  SocketAddress gate() const { return {here, gate_port_}; }
  SocketAddress store_address() const { return {here, store_->getPort()}; }
  c10d::TCPStore& store() { return *store_; }
  void close_gate() { gate_.reset(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  int gate_port_ = 0;
  std::unique_ptr<Gate> gate_;
};

/// A connection to the store as a member has it.
class Member {
 public:
  explicit Member(const Job& job, JobSecretPtr known = secret()) {
    const auto near = listen_on_loopback();
    port_ = near.port;
    porter_ = std::make_unique<Gate>(Gate::Plan{.listening = that_does_not_block(near.descriptor),
                                                .onward = job.gate(),
                                                .proof = Passage::Proof::given,
                                                .secret = std::move(known),
                                                .subject = "store"});
  }
  c10::intrusive_ptr<c10d::TCPStore> connect() const {
    return c10::make_intrusive<c10d::TCPStore>(here, options_at(port_));
  }
  int port() const { return port_; }

 private:
  int port_ = 0;
  std::unique_ptr<Gate> porter_;
};

class Stranger {
 public:
  explicit Stranger(const SocketAddress& address) : socket_(begin_to_connect(address)) {
    EXPECT_TRUE(wait_for(POLLOUT, 10s));
    finish_connecting(socket_);
  }
  /// Stops where the other side has hung up.
  void say(const std::string& text) {
    std::size_t said = 0;
    try {
      while (said < text.size() && wait_for(POLLOUT, 5s)) {
        said += write_some(socket_, std::as_bytes(std::span(text)).subspan(said));
      }
    } catch (const std::system_error&) {
      // It did not want to hear all of it.
    }
  }
  /// What comes until the other side hangs up, until there are `most` bytes, or for so long.
  std::string hear(std::size_t most = 1'000'000, std::chrono::milliseconds time = 20s) {
    std::string heard;
    const auto until = Clock::now() + time;
    try {
      while (heard.size() < most) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
        if (left <= 0ms || !wait_for(POLLIN, left)) return heard;
        std::string piece(std::min<std::size_t>(most - heard.size(), 4096), '\0');
        const auto count = read_some(socket_, std::as_writable_bytes(std::span(piece)));
        if (!count) break;
        heard += piece.substr(0, *count);
      }
    } catch (const std::system_error&) {
      // A connection that is reset has ended too.
    }
    hung_up_ = heard.size() < most;
    return heard;
  }
  bool hung_up() const { return hung_up_; }
  const FileDescriptor& socket() const { return socket_; }

 private:
  bool wait_for(short what, std::chrono::milliseconds time) const {
    pollfd one{.fd = socket_.get(), .events = what, .revents = 0};
    return ::poll(&one, 1, static_cast<int>(time.count())) > 0;
  }

  FileDescriptor socket_;
  bool hung_up_ = false;
};

TEST(Gate, MembersUseTheStore) {
  Job job;
  const Member one(job);
  const Member other(job);
  const auto first = one.connect();
  const auto second = other.connect();
  first->set("key", std::vector<std::uint8_t>{1, 2, 3});
  EXPECT_EQ(second->get("key"), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(first->clone()->get("key").size(), 3U);
  // More than passes at a time, both ways, and while somebody else waits.
  std::thread waits([&] { EXPECT_EQ(one.connect()->get("late").size(), 5'000'000U); });
  std::vector<std::uint8_t> much(5'000'000, 7);
  second->set("large", much);
  EXPECT_EQ(first->get("large"), much);
  second->set("late", much);
  waits.join();
}

TEST(Gate, AnotherSecretIsToldSo) {
  Job job;
  EXPECT_EQ(knock(job.gate(), secret(), "store", 10s).answer, Answer::proven);
  EXPECT_EQ(knock(job.gate(), secret("the secret of another job"), "store", 10s).answer, Answer::refused);
  EXPECT_EQ(knock(job.gate(), secret(), "mail", 10s).answer, Answer::refused);
  EXPECT_EQ(knock(job.store_address(), secret(), "store", 200ms).answer, Answer::open_store);
  const auto nobody_yet = listen_on_loopback();
  EXPECT_EQ(knock({here, nobody_yet.port}, secret(), "store", 200ms).answer, Answer::silent);
  ::close(nobody_yet.descriptor);
  const auto nobody = listen_on_loopback();
  ::close(nobody.descriptor);
  EXPECT_EQ(knock({here, nobody.port}, secret(), "store", 10s).answer, Answer::nobody);
  EXPECT_TRUE(asks_for_proof(job.gate(), 10s));
  EXPECT_FALSE(asks_for_proof(job.store_address(), 200ms));
}

// It proves nothing, and speaks TCPStore's protocol as c10d itself does.
TEST(Gate, AStrangerWithTheRightProtocolGetsNothing) {
  Job job;
  job.store().set("key", std::vector<std::uint8_t>{'v', 'a', 'l', 'u', 'e'});
  auto options = options_at(job.gate().port);
  options.timeout = 1s;
  EXPECT_ANY_THROW(c10d::TCPStore(here, options).set("stranger", std::vector<std::uint8_t>{1}));
  EXPECT_FALSE(job.store().check({"stranger"}));
  // The same to a porter with a wrong secret: what it lets in comes to nothing.
  const Member wrong(job, secret("the secret of another job"));
  options.port = static_cast<std::uint16_t>(wrong.port());
  EXPECT_ANY_THROW(c10d::TCPStore(here, options).set("stranger", std::vector<std::uint8_t>{1}));
  EXPECT_FALSE(job.store().check({"stranger"}));
}

TEST(Gate, SaysNothingButItsGreetingToStrangers) {
  Job job;
  for (const std::string& words : {std::string(), std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                   std::string(4096, '\xff'), std::string(1'000'000, '\0')}) {
    Stranger stranger(job.gate());
    stranger.say(words);
    const bool is_an_answer = words.size() >= 64;
    const auto heard = is_an_answer ? stranger.hear() : stranger.hear(1'000'000, 100ms);
    EXPECT_LE(heard.size(), greeting_bytes + 8 + 32);
    EXPECT_EQ(stranger.hung_up(), is_an_answer);
    // What is on its way may be lost with the connection.
    EXPECT_TRUE(heard.empty() || heard.starts_with("tutti")) << heard;
  }
}

// What a member said on its way through the gate, word for word, and what it went on to say to the store.
TEST(Gate, AReplayIsTurnedAway) {
  Job job;
  Stranger member(job.gate());
  Handshake handshake(Handshake::Side::calls, secret(), "store");
  std::string said;
  while (handshake.outcome() == Handshake::Outcome::open) {
    while (!handshake.to_send().empty()) {
      const auto words = handshake.to_send();
      said.append(reinterpret_cast<const char*>(words.data()), words.size());
      member.say(said);
      handshake.sent(words.size());
    }
    const auto to = handshake.to_receive();
    const auto heard = member.hear(to.size());
    ASSERT_EQ(heard.size(), to.size());
    std::ranges::copy(std::as_bytes(std::span(heard)), to.begin());
    handshake.received(to.size());
  }
  ASSERT_EQ(handshake.outcome(), Handshake::Outcome::proven);

  Stranger again(job.gate());
  EXPECT_EQ(again.hear(greeting_bytes).size(), greeting_bytes);
  again.say(said);
  EXPECT_EQ(again.hear().substr(0, 8), "refused!");
  EXPECT_TRUE(again.hung_up());
}

TEST(Gate, ScannersCostAMemberAMoment) {
  Job job;
  std::list<Stranger> silent;
  for (int i = 0; i < 350; ++i) silent.emplace_back(job.gate());
  const auto begin = Clock::now();
  const Member member(job);
  EXPECT_EQ(member.connect()->add("visits", 1), 1);
  EXPECT_LT(Clock::now() - begin, 5s);
  // They are not kept.
  for (int i = 0; i < 50; ++i) {
    silent.front().hear();
    EXPECT_TRUE(silent.front().hung_up());
    silent.pop_front();
  }
}

TEST(Gate, ASilentStrangerIsTurnedAwayInTime) {
  Job job;
  Stranger stranger(job.gate());
  const auto begin = Clock::now();
  stranger.hear(1'000'000, 30s);
  EXPECT_TRUE(stranger.hung_up());
  EXPECT_GE(Clock::now() - begin, 5s);
}

TEST(Gate, ItsEndEndsWhatWentThrough) {
  Job job;
  const Member member(job);
  const auto store = member.connect();
  std::thread closes([&] {
    std::this_thread::sleep_for(100ms);
    job.close_gate();
  });
  EXPECT_ANY_THROW(store->get("never set"));
  closes.join();
  EXPECT_ANY_THROW(store->add("visits", 1));
}

TEST(Porter, AMembersEndEndsItsPassage) {
  Job job;
  const Member member(job);
  for (int time = 0; time < 30; ++time) member.connect()->add("connects", 1);
  EXPECT_EQ(job.store().add("connects", 0), 30);
}

// The kernel tells who made a socket: here a thread of this test as another user.
TEST(Porter, ServesItsOwnUserOnly) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Job job;
  const Member member(job);
  std::thread([&] {
    constexpr int nobody = 65534;
    ::syscall(SYS_setfsuid, nobody);
    Stranger other({here, member.port()});
    other.say(std::string(100, 'x'));
    EXPECT_EQ(other.hear(), "");
    EXPECT_TRUE(other.hung_up());
  }).join();
  member.connect()->set("key", std::vector<std::uint8_t>{1});

  const auto listening = listen_on_loopback();
  const auto door = that_does_not_block(listening.descriptor);
  const Stranger same({here, listening.port});
  const auto near = accept_from(door);
  ASSERT_TRUE(near);
  EXPECT_TRUE(is_of_this_user(*near));
}

}  // namespace
}  // namespace tutti::test::gate_test
