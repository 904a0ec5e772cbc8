#include "comm/transport/tcp/endpoint.h"

#include <exception>
#include <utility>

#include "core/launchers.h"
#include "core/port_range.h"
#include "tutti/core/error.h"

namespace tutti::comm {

MessageSocket MessageSocket::listen(const std::string& host) {
  return {.listening = listen_tcp(host, read_port_range(&process_variable)), .nonce = random_nonce()};
}

Endpoint::Endpoint(MessageSocket socket, const std::vector<std::string>& addresses, EndpointOptions options)
    : options_(std::move(options)) {
  std::vector<EndpointAddress> of_ranks;
  for (const auto& text : addresses) {
    const auto address = EndpointAddress::from_text(text);
    if (!address) throw PeerError("Unexpected data at the coordinator: another program uses the same one.", {});
    of_ranks.push_back(*address);
  }
  loop_ = std::make_shared<EventLoop>(std::move(socket.listening), socket.nonce, options_.rank, std::move(of_ranks),
                                      ConnectionSecurity(options_.secret, options_.encrypts),
                                      options_.acknowledgement_timeout);
  loop_->start();
}

void Endpoint::close_channel(const ClosedChannel& closed, bool cancel_sends) noexcept {
  try {
    loop_->close_channel(closed, cancel_sends);
  } catch (const std::exception&) {
    // Without memory no close frames can be sent; peers see the connections close when the process exits.
  }
}

}  // namespace tutti::comm
