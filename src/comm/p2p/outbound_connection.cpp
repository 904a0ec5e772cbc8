#include "comm/p2p/outbound_connection.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <system_error>
#include <utility>

#include "comm/auth/auth_client.h"
#include "comm/backend/describe.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

std::exception_ptr disconnected_error(const Request& request) {
  return std::make_exception_ptr(PeerError(
      request.description + ": " + request.peer_name() + " disconnected (connection closed)", {request.peer}));
}

std::exception_ptr not_authenticated_error(const Request& request) {
  return std::make_exception_ptr(
      PeerError(request.description + ": " + request.peer_name() + " and this rank do not share the job's secret.",
                {request.peer}));
}

std::exception_ptr not_sent_error(const Request& request) {
  return std::make_exception_ptr(
      Error(request.description + ": it was not sent, since an exception ended the communicator."));
}

std::exception_ptr send_timeout_error(const Request& request) {
  return std::make_exception_ptr(TimeoutError(request.description + ": " + request.peer_name() +
                                                  " did not accept the message within " +
                                                  describe_duration(request.timeout),
                                              {request.peer}));
}

}  // namespace

std::string EndpointAddress::to_text() const {
  std::ostringstream text;
  text << socket.host << ' ' << socket.port << ' ' << nonce[0] << ' ' << nonce[1];
  return text.str();
}

EndpointAddress EndpointAddress::from_text(const std::string& text) {
  std::istringstream words(text);
  EndpointAddress address;
  words >> address.socket.host >> address.socket.port >> address.nonce[0] >> address.nonce[1];
  return address;
}

void OutboundConnection::add(const MessageHeader& header, RequestPtr request) {
  queue_.push_back({header, std::move(request)});
}

bool OutboundConnection::is_idle() const {
  return std::ranges::none_of(queue_, [](const OutboundMessage& message) { return message.request != nullptr; });
}

void OutboundConnection::cancel_group(std::uint64_t group, const std::exception_ptr& failure,
                                      Completions& completions) {
  std::erase_if(queue_, [&](OutboundMessage& message) {
    if (!message.request || message.header.group != group || message.sent > 0) return false;
    completions.push_back({std::move(message.request), failure});
    return true;
  });
}

void OutboundConnection::connect(const EndpointAddress& address, Completions& completions) {
  try {
    socket_ = connect_nonblocking(address.socket);
    connecting_ = true;
    if (secret_) handshake_.emplace(Handshake::Side::client, secret_, p2p_auth_subject);
    hello_ = {.nonce = address.nonce, .rank = own_rank_};
  } catch (const std::system_error&) {
    on_disconnect(completions);
  }
}

std::optional<pollfd> OutboundConnection::poll_events() const {
  if (!socket_.is_open()) return std::nullopt;
  const bool writes = connecting_ || (handshake_ ? !handshake_->to_send().empty() : !queue_.empty());
  // Nothing ever comes from there but its end.
  return pollfd{.fd = socket_.get(), .events = static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), .revents = 0};
}

void OutboundConnection::on_ready(short revents, Completions& completions) {
  try {
    if (connecting_) {
      finish_connect(socket_);
      connecting_ = false;
    }
    if (handshake_ && !authenticate(completions)) return;
    std::array<std::byte, 64> ignored;
    if ((revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !try_read(socket_, ignored)) {
      on_disconnect(completions);
      return;
    }
    write(completions);
  } catch (const std::system_error&) {
    on_disconnect(completions);
  }
}

bool OutboundConnection::authenticate(Completions& completions) {
  const auto outcome = advance_handshake(*handshake_, socket_);
  if (outcome == Handshake::Outcome::pending) return false;
  handshake_.reset();
  if (outcome != Handshake::Outcome::authenticated) fail_all(completions, not_authenticated_error);
  return outcome == Handshake::Outcome::authenticated;
}

void OutboundConnection::write(Completions& completions) {
  const auto hello = std::as_bytes(std::span(&hello_, 1));
  while (hello_sent_ < hello.size()) {
    const auto count = try_write(socket_, hello.subspan(hello_sent_));
    if (count == 0) return;
    hello_sent_ += count;
  }
  while (!queue_.empty()) {
    OutboundMessage& message = queue_.front();
    const auto header = std::as_bytes(std::span(&message.header, 1));
    const auto body =
        message.request ? std::span<const std::byte>(message.request->memory) : std::span<const std::byte>();
    while (message.sent < header.size() + body.size()) {
      const auto left =
          message.sent < header.size() ? header.subspan(message.sent) : body.subspan(message.sent - header.size());
      const auto count = try_write(socket_, left);
      if (count == 0) return;
      message.sent += count;
    }
    if (message.request) completions.push_back({std::move(message.request), nullptr});
    queue_.pop_front();
  }
}

void OutboundConnection::expire(Deadline now, bool check_exited, Completions& completions) {
  bool partly_sent = false;
  bool exited = false;
  std::erase_if(queue_, [&](OutboundMessage& message) {
    if (!message.request) return false;
    const bool late = message.request->deadline <= now;
    if (!late && check_exited && !socket_.is_open() && !exited) exited = message.request->peer_has_exited();
    if (disconnected_ || exited) {
      completions.push_back({message.request, disconnected_error(*message.request)});
      return true;
    }
    if (!late) return false;
    partly_sent = partly_sent || message.sent > 0;
    completions.push_back({message.request, send_timeout_error(*message.request)});
    return true;
  });
  // What follows half a message would be read as its other half.
  if (partly_sent) on_disconnect(completions);
}

std::optional<Deadline> OutboundConnection::next_deadline() const {
  std::optional<Deadline> first;
  for (const OutboundMessage& message : queue_) {
    if (message.request) first = std::min(first.value_or(message.request->deadline), message.request->deadline);
  }
  return first;
}

void OutboundConnection::fail_all(Completions& completions, MakeError make_error) {
  disconnected_ = true;
  socket_.reset();
  for (OutboundMessage& message : queue_) {
    if (message.request) completions.push_back({message.request, make_error(*message.request)});
  }
  queue_.clear();
}

void OutboundConnection::on_disconnect(Completions& completions) {
  fail_all(completions, disconnected_error);
}

void OutboundConnection::discard(Completions& completions) {
  fail_all(completions, not_sent_error);
}

}  // namespace tutti::comm
