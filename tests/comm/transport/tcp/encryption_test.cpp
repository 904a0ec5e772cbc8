// Ranks: 2 and 3 processes, 2 threads, and event loops in one process with a relay between them.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "comm/collective_checks.h"
#include "comm/transport/tcp/event_loop.h"
#include "support/listening.h"
#include "support/ranks.h"
#include "support/socket_bytes.h"
#include "support/temporary_folder.h"
#include "test_endpoints.h"
#include "tutti/core/error.h"

namespace tutti::test::encryption_test {
namespace {

using namespace tutti::comm;
using namespace std::chrono_literals;

constexpr const char* job_secret = "the secret of this job";
constexpr const char* secret_name = "TUTTI_JOB_SECRET";
constexpr const char* encryption_name = "TUTTI_ENCRYPTION";

struct TestMessage final : Message {
  std::string text;
  std::promise<Outcome> outcome;

  void complete(const Outcome& how) override { outcome.set_value(how); }
  Outcome::Kind wait() { return outcome.get_future().get().kind; }
};
using TestMessagePtr = std::shared_ptr<TestMessage>;

TestMessagePtr post(Endpoint& endpoint, bool is_send, int rank, const std::string& text, std::uint64_t tag = 0) {
  auto message = std::make_shared<TestMessage>();
  message->is_send = is_send;
  message->rank = rank;
  message->channel = 7;
  message->tag = tag;
  message->text = text;
  message->memory = std::as_writable_bytes(std::span(message->text));
  message->deadline = Clock::now() + 20s;
  endpoint.loop().post(message);
  return message;
}

/// Passes on the bytes of one connection in both directions, and keeps them.
class Relay {
 public:
  using Change = std::function<void(std::span<std::byte> bytes)>;

  /// `change` may change bytes of the rank at `target`.
  explicit Relay(EndpointAddress target, Change change = {})
      : target_(std::move(target)), change_(std::move(change)), listening_(listen_tcp("127.0.0.1")) {
    thread_ = std::thread([this] { run(); });
  }
  /// Ends when both sides have closed their connections.
  ~Relay() { join(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::string address() const { return EndpointAddress{listening_.address, target_.nonce}.to_text(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  /// While it is set, nothing is read from the rank at `target`.
  void set_paused(bool paused) { paused_ = paused; }
  /// After join().
  bool has_seen(const std::string& text) const {
    return seen_[0].find(text) != std::string::npos || seen_[1].find(text) != std::string::npos;
  }

 private:
  static bool wait_for(const FileDescriptor& socket, short events) {
    pollfd ready{.fd = socket.get(), .events = events, .revents = 0};
    return ::poll(&ready, 1, 20'000) == 1;
  }
  void run() {
    if (!wait_for(listening_.socket, POLLIN)) return;
    auto accepted = try_accept(listening_.socket);
    if (!accepted) return;
    std::array<FileDescriptor, 2> ends{std::move(*accepted), connect_nonblocking(target_.socket)};
    wait_for(ends[1], POLLOUT);
    std::array<pollfd, 2> ready{pollfd{.fd = ends[0].get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = ends[1].get(), .events = POLLIN, .revents = 0}};
    try {
      for (;;) {
        const bool paused = paused_;
        ready[1].events = paused ? 0 : POLLIN;
        if (::poll(ready.data(), ready.size(), paused ? 1 : 20'000) == 0 && !paused) return;
        for (const std::size_t from : {std::size_t{0}, std::size_t{1}}) {
          if (ready.at(from).revents == 0) continue;
          std::array<std::byte, 65536> bytes{};
          const auto count = test::try_read(ends.at(from), bytes);
          if (!count) return;
          pass_on(from, std::span(bytes).first(*count), ends.at(1 - from));
        }
      }
    } catch (const std::system_error&) {
      // One side has reset its connection.
    }
  }
  void pass_on(std::size_t from, std::span<std::byte> bytes, const FileDescriptor& to) {
    seen_.at(from).append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (from == 1 && change_) change_(bytes);
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      if (!wait_for(to, POLLOUT)) return;
      rest = rest.subspan(test::try_write(to, rest));
    }
  }

  EndpointAddress target_;
  Change change_;
  std::atomic<bool> paused_ = false;
  ListeningSocket listening_;
  std::array<std::string, 2> seen_;
  std::thread thread_;
};

class EncryptedMessages : public testing::Test {
 protected:
  std::unique_ptr<Endpoint> make_endpoint(int rank, bool encrypts) {
    return endpoints_.make(rank, std::make_shared<JobSecret>(job_secret, "a test"), encrypts);
  }
  /// Rank 0, which reaches rank 1 through the relay only. It must post the first message.
  std::unique_ptr<Endpoint> make_zero_behind(const Relay& relay, bool encrypts) {
    endpoints_.set_address(1, relay.address());
    return make_endpoint(0, encrypts);
  }
  EndpointAddress address_of_one() const { return *EndpointAddress::from_text(endpoints_.address_of(1)); }

  TestEndpoints endpoints_{2};
};

// The program that can read the network's packets.
TEST_F(EncryptedMessages, AnEavesdropperSeesNoMessage) {
  for (const bool encrypts : {false, true}) {
    endpoints_ = TestEndpoints(2);
    Relay relay(address_of_one());
    auto one = make_endpoint(1, encrypts);
    auto zero = make_zero_behind(relay, encrypts);
    const std::string short_text = "a gradient of rank 1";
    std::string long_text;
    while (long_text.size() < 6'000'000) long_text += "a gradient of rank 0";
    const auto received = post(*zero, false, 1, std::string(short_text.size(), '-'));
    const auto sent = post(*one, true, 0, short_text);
    EXPECT_EQ(sent->wait(), Outcome::Kind::completed);
    EXPECT_EQ(received->wait(), Outcome::Kind::completed);
    EXPECT_EQ(received->text, short_text);
    const auto long_sent = post(*zero, true, 1, long_text);
    const auto long_received = post(*one, false, 0, std::string(long_text.size(), '-'));
    EXPECT_EQ(long_received->wait(), Outcome::Kind::completed);
    EXPECT_EQ(long_sent->wait(), Outcome::Kind::completed);
    EXPECT_TRUE(long_received->text == long_text);
    one.reset();
    zero.reset();
    relay.join();
    EXPECT_EQ(relay.has_seen(short_text), !encrypts);
    EXPECT_EQ(relay.has_seen("gradient"), !encrypts);
    EXPECT_FALSE(relay.has_seen(job_secret));
  }
}

TEST_F(EncryptedMessages, AChangedByteEndsTheConnection) {
  for (const bool encrypts : {false, true}) {
    endpoints_ = TestEndpoints(2);
    std::atomic<bool> changes = false;
    Relay relay(address_of_one(), [&](std::span<std::byte> bytes) {
      if (changes.exchange(false)) bytes.back() ^= std::byte{1};
    });
    auto one = make_endpoint(1, encrypts);
    auto zero = make_zero_behind(relay, encrypts);
    const auto first = post(*zero, false, 1, "----");
    post(*one, true, 0, "text");
    EXPECT_EQ(first->wait(), Outcome::Kind::completed);
    changes = true;
    const auto second = post(*zero, false, 1, "----");
    post(*one, true, 0, "text");
    EXPECT_EQ(second->wait(), encrypts ? Outcome::Kind::disconnected : Outcome::Kind::completed);
    EXPECT_EQ(second->text, encrypts ? "----" : "texu");
    one.reset();  // the relay ends
    zero.reset();
  }
}

TEST_F(EncryptedMessages, LongMessagesPassEachOther) {
  const auto zero = make_endpoint(0, true);
  const auto one = make_endpoint(1, true);
  std::vector<TestMessagePtr> messages;
  std::vector<TestMessagePtr> receives;
  for (std::uint64_t tag = 0; tag < 8; ++tag) {
    const std::string text(static_cast<std::size_t>(3'000'001 + 2'000'000 * (tag % 3)), static_cast<char>('a' + tag));
    messages.push_back(post(*zero, true, 1, text, tag));
    messages.push_back(post(*one, true, 0, text, tag));
    receives.push_back(post(*zero, false, 1, std::string(text.size(), '-'), tag));
    receives.push_back(post(*one, false, 0, std::string(text.size(), '-'), tag));
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    ASSERT_EQ(receives[i]->wait(), Outcome::Kind::completed) << i;
    ASSERT_EQ(messages[i]->wait(), Outcome::Kind::completed) << i;
    EXPECT_TRUE(receives[i]->text == messages[i]->text) << i;
  }
}

// The socket takes a part of a message that counts as sent, and no later message makes the event loop write.
TEST_F(EncryptedMessages, BytesThatWaitForTheSocketFollow) {
  Relay relay(address_of_one());
  auto one = make_endpoint(1, true);
  auto zero = make_zero_behind(relay, true);
  const auto first = post(*zero, false, 1, "----");
  post(*one, true, 0, "text");
  EXPECT_EQ(first->wait(), Outcome::Kind::completed);
  relay.set_paused(true);
  const std::string text(std::size_t{65'536} - sizeof(FrameHeader), 'x');  // all that one write takes
  std::vector<TestMessagePtr> sends;
  for (std::uint64_t tag = 1; tag <= 1000; ++tag) sends.push_back(post(*one, true, 0, text, tag));
  EXPECT_EQ(sends.front()->wait(), Outcome::Kind::completed);
  // The system may take more while messages are cancelled.
  std::vector<std::uint64_t> sent;
  for (const auto& message : sends) {
    if (!one->loop().cancel(message)) sent.push_back(message->tag);
  }
  ASSERT_FALSE(sent.empty());
  EXPECT_LT(sent.size(), sends.size()) << "the system has taken all bytes";
  relay.set_paused(false);
  std::vector<TestMessagePtr> receives;
  for (const auto tag : sent) receives.push_back(post(*zero, false, 1, std::string(text.size(), '-'), tag));
  for (const auto& received : receives) ASSERT_EQ(received->wait(), Outcome::Kind::completed) << received->tag;
  EXPECT_EQ(receives.back()->text, text);
  one.reset();
  zero.reset();
}

// The last messages are in flight when the endpoint ends.
TEST_F(EncryptedMessages, ArriveAlthoughTheirSenderEnds) {
  const auto zero = make_endpoint(0, true);
  auto one = make_endpoint(1, true);
  std::vector<TestMessagePtr> receives;
  for (std::uint64_t tag = 0; tag < 20; ++tag) post(*one, true, 0, std::string(200'000, 'x'), tag);
  for (std::uint64_t tag = 0; tag < 20; ++tag)
    receives.push_back(post(*zero, false, 1, std::string(200'000, '-'), tag));
  one.reset();
  for (const auto& received : receives) {
    EXPECT_EQ(received->wait(), Outcome::Kind::completed);
    EXPECT_EQ(received->text, std::string(200'000, 'x'));
  }
}

ProcessOptions nodes(int count) {
  return {.num_nodes = count, .variables = {{secret_name, job_secret}, {encryption_name, "1"}}};
}

void set(const char* name, const char* value) {
  ::setenv(name, value, 1);  // NOLINT(concurrency-mt-unsafe): a rank program has one thread before it connects
}

/// Whether a client that knows the job's secret can open a TLS connection for messages to the port.
bool is_encrypted(int port) {
  const coordinator::TlsContext context(JobSecret(job_secret, "a test"), coordinator::Side::client,
                                        "encrypted messages");
  coordinator::ByteSocket client(connect_nonblocking({"127.0.0.1", port}), &context);
  pollfd ready{.fd = client.descriptor().get(), .events = POLLOUT, .revents = 0};
  while (::poll(&ready, 1, 20'000) == 1) {
    if (client.write({}) == 0) return true;
    if (errno != EAGAIN) return false;
    ready.events = POLLIN;
  }
  return false;
}

/// Call on all ranks, after messages have made this rank listen.
void expect_encryption(const Communicator& communicator) {
  int encrypted = 0;
  for (const auto& listener : tcp_listeners()) encrypted += is_encrypted(listener.port) ? 1 : 0;
  EXPECT_EQ(encrypted, 1);
  communicator.barrier().wait();
}

const RankProgram every_check("encryption_every_check", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  EXPECT_EQ(communicator.backend_name(), "encrypted tcp");
  check_all(communicator);
  expect_encryption(communicator);
});

const RankProgram of_threads("encryption_of_threads", [] {
  const auto body = [](const Communicator& communicator) {
    EXPECT_EQ(communicator.backend_name(), "encrypted tcp");
    check_all(communicator);
  };
  run_thread_ranks(2, body, {.backend = "tcp"});
});

TEST(Encryption, HoldsBetweenThreads) {
  expect_success(run_processes(of_threads, 1, nodes(1)));
}

TEST(Encryption, EveryCheckHoldsOnTwoAndThreeNodes) {
  expect_success(run_processes(every_check, 2, nodes(2)));
  expect_success(run_processes(every_check, 3, nodes(3)));
}

TEST(Encryption, EveryCheckHoldsOnOneNode) {
  expect_success(run_processes(every_check, 2, nodes(1)));
}

void sum_up(const Communicator& communicator) {
  const auto sum = at::full({100'000}, 1.0F);
  communicator.all_reduce(sum).wait();
  EXPECT_EQ(sum[0].item<float>(), static_cast<float>(communicator.size()));
  expect_encryption(communicator);
}

const RankProgram of_the_program("encryption_of_the_program", [] {
  set(encryption_name, "0");
  sum_up(Communicator::connect(read_environment(), {.backend = "tcp", .encryption = true}));
});

TEST(Encryption, IsAnOptionOfTheProgram) {
  expect_success(run_processes(of_the_program, 2, nodes(2)));
}

constexpr const char* store_name = "TUTTI_TEST_STORE";

const RankProgram at_a_store("encryption_at_a_store", [] {
  const auto environment = read_environment();
  const auto store = c10::make_intrusive<c10d::FileStore>(std::getenv(store_name), 2);
  sum_up(Communicator::connect(store, environment.rank, 2, {.backend = "tcp", .encryption = true}));
  EXPECT_THROW(Communicator::connect(store, environment.rank, 2, {.encryption = environment.rank == 0}), UsageError);
  EXPECT_EQ(store.use_count(), 1U) << "a communicator that ended keeps its store";
});

TEST(Encryption, IsForRanksThatShareAStore) {
  const TemporaryFolder folder;
  auto options = nodes(1);
  options.variables[store_name] = folder.path() / "store";
  options.variables[encryption_name] = "0";
  expect_success(run_processes(at_a_store, 2, options));
}

void expect_usage_error(const CommunicatorOptions& options, const std::string& part) {
  try {
    Communicator::connect(read_environment(), options);
    ADD_FAILURE() << "connected";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

const RankProgram one_disagrees("encryption_one_disagrees", [] {
  const int rank = read_environment().rank;
  if (rank == 1) set(encryption_name, "0");
  const std::string asks = rank == 1 ? "rank 1 does not" : "rank " + std::to_string(rank) + " asks for encryption";
  expect_usage_error({}, asks);
  expect_usage_error({}, "rank 1 does not");
});

TEST(Encryption, RanksThatDisagreeThrowAndAreNamed) {
  expect_success(run_processes(one_disagrees, 3, nodes(3)));
}

const RankProgram has_no_secret("encryption_has_no_secret", [] {
  expect_usage_error({}, "TUTTI_ENCRYPTION=1: encryption between ranks needs a secret");
  set(encryption_name, "0");
  expect_usage_error({.encryption = true}, "CommunicatorOptions::encryption: encryption between ranks needs a secret");
  set(encryption_name, "yes");
  expect_usage_error({}, "TUTTI_ENCRYPTION='yes'");
});

TEST(Encryption, NeedsASecret) {
  for (const int count : {1, 2})
    expect_success(run_processes(has_no_secret, 2, {.num_nodes = count, .variables = {{encryption_name, "1"}}}));
}

const RankProgram asks_for_mpi("encryption_asks_for_mpi",
                               [] { expect_usage_error({.backend = "mpi"}, "MPI does not encrypt"); });

TEST(Encryption, NeverFallsBackToABackendWithoutIt) {
  expect_success(run_processes(asks_for_mpi, 2, nodes(2)));
}

}  // namespace
}  // namespace tutti::test::encryption_test
