#include "comm/auth/proxy_connection.h"

#include <span>
#include <system_error>
#include <utility>

#include "comm/auth/auth_client.h"

namespace tutti::comm {
namespace {

// Under load a server proxy may evict a rank too: the client proxy then connects again.
constexpr auto proxy_reconnect_interval = std::chrono::milliseconds(50);
constexpr auto proxy_reconnect_timeout = std::chrono::seconds(10);

}  // namespace

void ByteRelay::move(const FileDescriptor& from, const FileDescriptor& to) {
  for (;;) {
    while (wants_to_write()) {
      const auto count = try_write(to, std::span(buffer_).subspan(sent_, size_ - sent_));
      if (count == 0) return;
      sent_ += count;
    }
    sent_ = size_ = 0;
    if (ended_) return;
    const auto count = try_read(from, buffer_);
    ended_ = !count.has_value();
    if (count.value_or(0) == 0) return;
    size_ = *count;
  }
}

ProxyConnection::ProxyConnection(FileDescriptor client, SocketAddress server_address, Role role, JobSecretPtr secret,
                                 std::string subject, Time since)
    : client_(std::move(client)),
      server_address_(std::move(server_address)),
      role_(role),
      secret_(std::move(secret)),
      subject_(std::move(subject)),
      since_(since) {
  set_tcp_nodelay(client_);
  if (role_ == Role::server) {
    handshake_.emplace(Handshake::Side::server, secret_, subject_);
  } else {
    next_attempt_ = since;
  }
}

void ProxyConnection::add_poll_events(std::vector<pollfd>& poll_set) const {
  const auto add = [&](const FileDescriptor& socket, bool reads, bool writes) {
    const auto events = static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
    if (socket.is_open() && events != 0) poll_set.push_back({.fd = socket.get(), .events = events, .revents = 0});
  };
  if (connecting_) return add(server_, false, true);
  if (!authenticated_) {
    const bool writes = handshake_ && !handshake_->to_send().empty();
    return add(role_ == Role::server ? client_ : server_, !writes, writes);
  }
  add(client_, to_server_.wants_to_read(), to_client_.wants_to_write());
  add(server_, to_client_.wants_to_read(), to_server_.wants_to_write());
}

bool ProxyConnection::on_ready(Time now) {
  try {
    if (next_attempt_ && now >= *next_attempt_) connect_to_server();
    if (connecting_) {
      pollfd ready{.fd = server_.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) <= 0) return true;
      finish_connect(server_);
      connecting_ = false;
      if (!authenticated_) handshake_.emplace(Handshake::Side::client, secret_, subject_);
    }
    if (!authenticated_ && !authenticate()) return false;
    return !authenticated_ || connecting_ || relay();
  } catch (const std::system_error&) {
    return reconnect(now);
  }
}

/// Returns false where it is over without a proof.
bool ProxyConnection::authenticate() {
  if (!handshake_) return true;  // not connected yet
  const auto outcome = advance_handshake(*handshake_, role_ == Role::server ? client_ : server_);
  if (outcome == Handshake::Outcome::pending) return true;
  handshake_.reset();
  failed_ = outcome != Handshake::Outcome::authenticated;
  if (failed_) return false;
  authenticated_ = true;
  if (role_ == Role::server) connect_to_server();
  return true;
}

void ProxyConnection::connect_to_server() {
  next_attempt_.reset();
  server_ = connect_nonblocking(server_address_);
  connecting_ = true;
}

/// After a connection has broken. Returns false where this was the end.
bool ProxyConnection::reconnect(Time now) {
  if (authenticated_ || role_ == Role::server || now - since_ >= proxy_reconnect_timeout) return false;
  handshake_.reset();
  connecting_ = false;
  server_.reset();
  next_attempt_ = now + proxy_reconnect_interval;
  return true;
}

bool ProxyConnection::relay() {
  to_server_.move(client_, server_);
  to_client_.move(server_, client_);
  // Neither side closes one direction only.
  return !to_server_.is_finished() && !to_client_.is_finished();
}

}  // namespace tutti::comm
