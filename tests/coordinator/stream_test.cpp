// Both sides of a connection in one thread: a handshake without the job's secret proves nothing.
#include "coordinator/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "told.h"

namespace tutti::coordinator::stream_test {
namespace {

using test::secret;

std::pair<FileDescriptor, FileDescriptor> connected_sockets() {
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()) != 0) std::abort();
  return {FileDescriptor(sockets[0]), FileDescriptor(sockets[1])};
}

// Gives a server a certificate that it has made itself.
void add_certificate(SSL_CTX* context) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  ASSERT_EQ(X509_set_pubkey(certificate.get(), key.get()), 1);
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  ASSERT_EQ(SSL_CTX_use_certificate(context, certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key.get()), 1);
}

// The server has a certificate, and the client trusts it.
class Handshake : public testing::Test {
 protected:
  Handshake() {
    add_certificate(server_context.get());
    SSL_CTX_set_verify(client_context.get(), SSL_VERIFY_NONE, nullptr);
  }
  /// Exchanges bytes until neither side sends more, and counts the frames that arrive.
  void run() {
    auto sockets = connected_sockets();
    Stream server(std::move(sockets.first), &server_context);
    Stream client(std::move(sockets.second), &client_context);
    for (auto* stream : {&server, &client}) stream->send(BodyWriter().frame(MessageType::heartbeat));
    constexpr int rounds = 10;  // a handshake takes three
    for (int round = 0; round < rounds; ++round) {
      server_state = server.pump([&](const FrameHeader&, std::string_view) { ++server_frames; });
      client_state = client.pump([&](const FrameHeader&, std::string_view) { ++client_frames; });
    }
  }

  TlsContext server_context{*secret(), Side::server};
  TlsContext client_context{*secret(), Side::client};
  Stream::State server_state = Stream::State::open;
  Stream::State client_state = Stream::State::open;
  int server_frames = 0;
  int client_frames = 0;
};

TEST_F(Handshake, WithTheSecretFramesPass) {
  run();
  EXPECT_EQ(server_state, Stream::State::open);
  EXPECT_EQ(client_state, Stream::State::open);
  EXPECT_EQ(server_frames, 1);
  EXPECT_EQ(client_frames, 1);
}

TEST_F(Handshake, AServerAcceptsNoClientWithoutTheSecret) {
  SSL_CTX_set_psk_client_callback(client_context.get(), nullptr);
  run();
  EXPECT_EQ(server_state, Stream::State::unauthenticated);
  EXPECT_EQ(server_frames, 0);
}

TEST_F(Handshake, AClientAcceptsNoServerWithoutTheSecret) {
  SSL_CTX_set_psk_server_callback(server_context.get(), nullptr);
  run();
  EXPECT_EQ(client_state, Stream::State::unauthenticated);
  EXPECT_EQ(client_frames, 0);
}

void ignore(const FrameHeader&, std::string_view) {}

// Reads all that has come.
std::size_t read_all(const FileDescriptor& socket) {
  std::array<char, 4096> bytes;
  std::size_t all = 0;
  for (ssize_t count = 0; (count = ::read(socket.get(), bytes.data(), bytes.size())) > 0;) {
    all += static_cast<std::size_t>(count);
  }
  return all;
}

TEST(Stream, APartOfAFrameIsProgress) {
  auto sockets = connected_sockets();
  Stream stream(std::move(sockets.first), nullptr);
  EXPECT_EQ(stream.pump(ignore), Stream::State::open);
  EXPECT_FALSE(stream.has_progressed());
  ASSERT_EQ(::write(sockets.second.get(), "\5", 1), 1);
  stream.pump(ignore);
  EXPECT_TRUE(stream.has_progressed());
  stream.pump(ignore);
  EXPECT_FALSE(stream.has_progressed());
}

TEST(Stream, APeerThatReadsIsProgress) {
  auto sockets = connected_sockets();
  Stream stream(std::move(sockets.first), nullptr);
  stream.send(BodyWriter().text(std::string(1 << 20, 'x')).frame(MessageType::set));
  stream.pump(ignore);
  EXPECT_FALSE(stream.has_progressed()) << "the socket is full";
  EXPECT_GT(read_all(sockets.second), 0U);
  stream.pump(ignore);
  EXPECT_TRUE(stream.has_progressed());
}

// The requests of four threads, each with the longest value.
TEST(Stream, ManyLongFramesMayWait) {
  auto sockets = connected_sockets();
  Stream stream(std::move(sockets.first), nullptr);
  const auto frame = BodyWriter().text(std::string(max_value_bytes, 'x')).frame(MessageType::set);
  for (int frames = 0; frames < 4; ++frames) stream.send(frame);
  EXPECT_EQ(stream.state(), Stream::State::open);
}

TEST(Stream, TakesNoFramesWhileThePeerDoesNotRead) {
  constexpr int requests = 10;
  constexpr std::size_t answer_bytes = 1 << 20;
  auto sockets = connected_sockets();
  Stream server(std::move(sockets.first), nullptr, 2 * answer_bytes);
  Stream client(std::move(sockets.second), nullptr);
  client.accept_large_frames();
  int taken = 0;
  int answered = 0;
  const auto answer = [&](const FrameHeader&, std::string_view) {
    ++taken;
    server.send(BodyWriter().text(std::string(answer_bytes, 'x')).frame(MessageType::reply));
  };
  for (int request = 0; request < requests; ++request) client.send(BodyWriter().frame(MessageType::get));
  for (int round = 0; round < 3; ++round) server.pump(answer);
  EXPECT_EQ(taken, 3);
  EXPECT_EQ(server.events(), std::uint32_t{EPOLLOUT});
  while (answered < requests) {
    ASSERT_EQ(client.pump([&](const FrameHeader&, std::string_view) { ++answered; }), Stream::State::open);
    ASSERT_EQ(server.pump(answer), Stream::State::open);
  }
  EXPECT_EQ(taken, requests);
  EXPECT_EQ(server.events(), std::uint32_t{EPOLLIN});
}

}  // namespace
}  // namespace tutti::coordinator::stream_test
