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
    : options_(std::move(options)) {
  std::vector<std::optional<EndpointAddress>> of_ranks;
  for (const auto& text : addresses) {
    const bool has_address = !text.starts_with(no_address_mark);
    problems_.push_back(has_address ? "" : text.substr(1));
    of_ranks.push_back(EndpointAddress::from_text(text));
    if (has_address && !of_ranks.back())
      throw PeerError("Unexpected data at the coordinator: another program uses the same one.", {});
  }
  if (!socket.problem.empty()) return;
  loop_ = std::make_shared<EventLoop>(std::move(socket.listening), socket.nonce, options_.rank, std::move(of_ranks),
                                      ConnectionSecurity(options_.secret, options_.encrypts),
                                      options_.acknowledgement_timeout);
  loop_->start();
}

EventLoop& Endpoint::loop() {
  if (!loop_) throw PeerError(problem_of(options_.rank), {});
  return *loop_;
}

void Endpoint::close_channel(const ClosedChannel& closed, bool cancel_sends) noexcept {
  try {
    if (loop_) loop_->close_channel(closed, cancel_sends);
  } catch (const std::exception&) {
    // Without memory no close frames can be sent; peers see the connections close when the process exits.
  }
}

}  // namespace tutti::comm
