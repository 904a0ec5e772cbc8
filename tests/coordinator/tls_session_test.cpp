// Ranks: none. Two TLS sessions whose bytes the test carries.
#include "coordinator/tls_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::test::tls_session_test {
namespace {

using namespace tutti::coordinator;

class Ends {
 public:
  explicit Ends(const std::string& server_secret = "the secret of this job",
                const std::string& server_purpose = "messages", std::uint64_t records_per_key = 1000)
      : client_context_(JobSecret("the secret of this job", "a test"), Side::client, "messages"),
        server_context_(JobSecret(server_secret, "a test"), Side::server, server_purpose),
        client(client_context_, records_per_key),
        server(server_context_, records_per_key) {}

  /// Returns the state of the server.
  TlsSession::State greet() {
    for (int round = 0; round < 3; ++round) {
      pass(client, server, client_bytes);
      pass(server, client, server_bytes);
    }
    return server.state();
  }

 private:
  TlsContext client_context_;
  TlsContext server_context_;

 public:
  TlsSession client;
  TlsSession server;
  std::vector<std::string> client_bytes{};  // what the client has sent, by round
  std::vector<std::string> server_bytes{};

 private:
  static void pass(TlsSession& from, TlsSession& to, std::vector<std::string>& sent) {
    from.handshake(sent.emplace_back());
    to.receive(std::as_bytes(std::span(sent.back())));
  }
};

/// The state of a session after these bytes.
TlsSession::State after(TlsSession& session, const std::string& bytes) {
  std::string answer;
  session.receive(std::as_bytes(std::span(bytes)));
  return session.handshake(answer);
}

std::string encrypted(TlsSession& from, const std::string& text) {
  std::string bytes;
  for (auto rest = std::as_bytes(std::span(text)); !rest.empty();) {
    const auto record = rest.first(std::min(rest.size(), tls_record_bytes));
    EXPECT_TRUE(from.encrypt(record, bytes));
    rest = rest.subspan(record.size());
  }
  return bytes;
}

std::string decrypted(TlsSession& to, const std::string& bytes) {
  to.receive(std::as_bytes(std::span(bytes)));
  std::string text;
  std::string part(1000, '\0');
  while (const auto count = to.decrypt(std::as_writable_bytes(std::span(part)))) text.append(part, 0, count);
  return text;
}

TEST(TlsSession, CarriesBytesBothWays) {
  Ends ends;
  ASSERT_EQ(ends.greet(), TlsSession::State::open);
  ASSERT_EQ(ends.client.state(), TlsSession::State::open);
  for (const std::size_t length : {0, 1, 100, 16384, 16385, 100'000}) {
    const std::string text(length, 'x');
    const auto bytes = encrypted(ends.client, text);
    EXPECT_EQ(bytes.find("xxxx"), std::string::npos);
    EXPECT_EQ(decrypted(ends.server, bytes), text);
    EXPECT_EQ(decrypted(ends.client, encrypted(ends.server, text)), text);
  }
}

TEST(TlsSession, AnotherSecretOrPurposeIsNoProof) {
  EXPECT_EQ(Ends("the secret of another job").greet(), TlsSession::State::unauthenticated);
  Ends ends("the secret of this job", "coordinator");
  EXPECT_EQ(ends.greet(), TlsSession::State::unauthenticated);
  EXPECT_EQ(ends.client.state(), TlsSession::State::unauthenticated);
}

// A recorded handshake is replayed to either side. Both sides contribute random numbers to the keys.
TEST(TlsSession, AReplayIsNoProof) {
  Ends recorded;
  ASSERT_EQ(recorded.greet(), TlsSession::State::open);
  Ends replayed;
  EXPECT_EQ(after(replayed.server, recorded.client_bytes[0]), TlsSession::State::handshake);
  EXPECT_EQ(after(replayed.server, recorded.client_bytes[1]), TlsSession::State::unauthenticated);
  EXPECT_EQ(after(replayed.client, ""), TlsSession::State::handshake);
  EXPECT_EQ(after(replayed.client, recorded.server_bytes[0]), TlsSession::State::unauthenticated);
}

// An attacker sends a side's messages back to it.
TEST(TlsSession, AReflectionIsNoProof) {
  Ends ends;
  ASSERT_EQ(ends.greet(), TlsSession::State::open);
  Ends reflected;
  std::string hello;
  reflected.client.handshake(hello);
  EXPECT_EQ(after(reflected.client, hello), TlsSession::State::unauthenticated);
  EXPECT_EQ(after(reflected.server, hello), TlsSession::State::handshake);
  EXPECT_EQ(after(reflected.server, ends.server_bytes[0]), TlsSession::State::unauthenticated);
}

TEST(TlsSession, GarbageIsNoProof) {
  for (const char byte : {'\0', '\xff', 'G', '\x16'}) {
    Ends ends;
    const std::string garbage(100'000, byte);
    EXPECT_EQ(after(ends.client, garbage), TlsSession::State::unauthenticated);
    EXPECT_EQ(after(ends.server, garbage), TlsSession::State::unauthenticated);
  }
}

// The handshake arrives byte by byte: no side is open before the last byte.
TEST(TlsSession, AnUnfinishedHandshakeIsNoProof) {
  Ends ends;
  TlsSession* from = &ends.client;
  TlsSession* to = &ends.server;
  for (int message = 0; message < 3; ++message, std::swap(from, to)) {
    std::string bytes;
    from->handshake(bytes);
    ASSERT_FALSE(bytes.empty());
    for (const char byte : bytes.substr(0, bytes.size() - 1)) {
      ASSERT_EQ(after(*to, {byte}), TlsSession::State::handshake);
    }
    to->receive(std::as_bytes(std::span(bytes)).last(1));
  }
  std::string none;
  EXPECT_EQ(ends.server.handshake(none), TlsSession::State::open);
  EXPECT_EQ(ends.client.state(), TlsSession::State::open);
}

TEST(TlsSession, BytesBehindTheLastRecordAreReturned) {
  Ends ends;
  ASSERT_EQ(ends.greet(), TlsSession::State::open);
  const auto bytes = encrypted(ends.client, "text") + "plain";
  ends.server.receive(std::as_bytes(std::span(bytes)));
  std::string text(4, '-');
  ASSERT_EQ(ends.server.decrypt(std::as_writable_bytes(std::span(text))), 4U);
  const auto unread = ends.server.take_unread();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(unread.data()), unread.size()), "plain");
  EXPECT_TRUE(ends.server.take_unread().empty());
}

TEST(TlsSession, ChangesItsKeyBetweenRecords) {
  constexpr int records_per_key = 3;
  Ends ends("the secret of this job", "messages", records_per_key);
  ASSERT_EQ(ends.greet(), TlsSession::State::open);
  const auto size = encrypted(ends.server, "text").size();
  int updates = 0;
  for (int record = 0; record < 100; ++record) {
    const auto bytes = encrypted(ends.client, "text");
    if (bytes.size() > size) ++updates;
    ASSERT_EQ(decrypted(ends.server, bytes), "text");
  }
  EXPECT_EQ(updates, 33);
}

TEST(TlsSession, AChangedByteEndsTheConnection) {
  Ends ends;
  ASSERT_EQ(ends.greet(), TlsSession::State::open);
  auto bytes = encrypted(ends.client, "text");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  EXPECT_EQ(decrypted(ends.server, bytes), "");
  EXPECT_EQ(ends.server.state(), TlsSession::State::unauthenticated);
}

// Records of both directions, with changes of keys, while two threads use each session.
TEST(TlsSession, OneThreadDecryptsWhileAnotherEncrypts) {
  Ends ends("the secret of this job", "messages", 5);
  ASSERT_EQ(ends.greet(), TlsSession::State::open);
  constexpr int rounds = 500;
  const std::string text(20'000, 'y');
  std::string to_server;
  std::string to_client;
  for (int round = 0; round < rounds; ++round) to_client += encrypted(ends.server, text);
  std::string received;
  std::thread decrypts([&] { received = decrypted(ends.client, to_client); });
  for (int round = 0; round < rounds; ++round) to_server += encrypted(ends.client, text);
  decrypts.join();
  EXPECT_EQ(received.size(), rounds * text.size());
  EXPECT_EQ(decrypted(ends.server, to_server).size(), rounds * text.size());
}

}  // namespace
}  // namespace tutti::test::tls_session_test
