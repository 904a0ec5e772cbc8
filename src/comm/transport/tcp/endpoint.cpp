#include "comm/transport/tcp/endpoint.h"

#include <exception>
#include <optional>
#include <utility>

#include "comm/backend/describe.h"
#include "core/launchers.h"
#include "core/port_range.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// What a rank without an address publishes: the reason behind this mark.
constexpr char no_address_mark = '!';

}  // namespace

MessageSocket MessageSocket::listen(const std::string& host, const std::string& interface) {
  MessageSocket socket{.nonce = random_nonce()};
  const auto& place = interface.empty() ? host : interface;
  try {
    socket.listening =
        listen_tcp(interface.empty() ? host : interface_address(interface), read_port_range(&process_variable));
  } catch (const std::exception& error) {
    socket.problem = "listening on " + place + " failed: " + first_line(error.what());
  }
  return socket;
}

std::string MessageSocket::to_text() const {
  return problem.empty() ? EndpointAddress{listening.address, nonce}.to_text() : no_address_mark + problem;
}

Endpoint::Endpoint(MessageSocket socket, const std::vector<std::string>& addresses, EndpointOptions options)
    : options_(std::move(options)), socket_(std::move(socket)) {
  for (const auto& text : addresses) {
    const bool has_address = !text.starts_with(no_address_mark);
    problems_.push_back(has_address ? "" : text.substr(1));
    addresses_.push_back(EndpointAddress::from_text(text));
    if (has_address && !addresses_.back())
      throw PeerError("Unexpected data at the coordinator: another program uses the same one.", {});
  }
}

EventLoop& Endpoint::open() {
  const std::lock_guard lock(mutex_);
  if (loop_) return *loop_;
  if (!socket_.problem.empty()) throw PeerError(socket_.problem, {});
  auto loop = std::make_shared<EventLoop>(std::move(socket_.listening), socket_.nonce, options_.rank, addresses_,
                                          ConnectionSecurity(options_.secret, options_.encrypts));
  for (const auto& closed : std::exchange(closed_, {})) loop->close_channel(closed, true);
  loop->start();
  loop_ = std::move(loop);
  return *loop_;
}

void Endpoint::close_channel(ClosedChannel closed, bool cancel_sends) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (!loop_) return closed_.push_back(std::move(closed));
    }
    loop_->close_channel(closed, cancel_sends);  // no call replaces the loop
  } catch (const std::exception&) {
    // Without memory no close frames can be sent; peers see the connections close when the process exits.
  }
}

}  // namespace tutti::comm
