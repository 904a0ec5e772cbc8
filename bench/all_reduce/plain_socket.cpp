// The column "plain socket". Uses private headers of comm, which wrap system calls.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <poll.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "all_reduce/reducers.h"
#include "comm/rendezvous/local_address.h"
#include "core/socket.h"
#include "support/socket_bytes.h"

namespace tutti::bench {
namespace {

constexpr int poll_timeout_ms = 60'000;

void wait_until_ready(std::vector<pollfd> polled) {
  if (::poll(polled.data(), polled.size(), poll_timeout_ms) <= 0)
    throw std::runtime_error("plain socket: no event in 60 s");
}

/// What a rank still has to send to a peer, and to receive from it.
struct Transfer {
  std::span<const std::byte> out{};
  std::span<std::byte> in{};
};

/// Connections between all ranks.
class PlainSockets {
 public:
  PlainSockets(const Communicator& communicator, const Environment& environment)
      : sockets_(static_cast<std::size_t>(communicator.size())) {
    const auto listening = listen_tcp(comm::network_address(environment.master_addr));
    const auto ports = communicator.all_gather_object(std::to_string(listening.address.port));
    const auto hosts = communicator.all_gather_object(listening.address.host);
    const auto own = static_cast<std::size_t>(communicator.rank());
    for (std::size_t peer = 0; peer < own; ++peer) {
      auto socket = connect_nonblocking({hosts[peer], std::stoi(ports[peer])});
      wait_until_ready({{.fd = socket.get(), .events = POLLOUT, .revents = 0}});
      finish_connect(socket);
      test::try_write(socket, std::as_bytes(std::span(&own, 1)));
      sockets_[peer] = std::move(socket);
    }
    for (std::size_t i = own + 1; i < sockets_.size(); ++i) {
      wait_until_ready({{.fd = listening.socket.get(), .events = POLLIN, .revents = 0}});
      auto socket = try_accept(listening.socket);
      if (!socket) throw std::runtime_error("plain socket: a rank did not connect");
      set_tcp_nodelay(*socket);
      wait_until_ready({{.fd = socket->get(), .events = POLLIN, .revents = 0}});
      std::size_t peer = 0;
      test::try_read(*socket, std::as_writable_bytes(std::span(&peer, 1)));
      sockets_.at(peer) = std::move(*socket);
    }
  }

  /// Does all transfers, one for each rank, at the same time.
  void exchange(std::vector<Transfer> transfers) const {
    for (;;) {
      std::vector<pollfd> polled;
      for (std::size_t peer = 0; peer < transfers.size(); ++peer) {
        const short events = advance(sockets_[peer], transfers[peer]);
        if (events != 0) polled.push_back({.fd = sockets_[peer].get(), .events = events, .revents = 0});
      }
      if (polled.empty()) return;
      wait_until_ready(std::move(polled));
    }
  }

 private:
  /// Transfers what is possible now. Returns the events to wait for.
  static short advance(const FileDescriptor& socket, Transfer& transfer) {
    while (!transfer.out.empty()) {
      const auto written = test::try_write(socket, transfer.out);
      if (written == 0) break;
      transfer.out = transfer.out.subspan(written);
    }
    while (!transfer.in.empty()) {
      const auto read = test::try_read(socket, transfer.in);
      if (!read) throw std::runtime_error("plain socket: a rank closed its connection");
      if (*read == 0) break;
      transfer.in = transfer.in.subspan(*read);
    }
    return static_cast<short>((transfer.out.empty() ? 0 : POLLOUT) | (transfer.in.empty() ? 0 : POLLIN));
  }

  std::vector<FileDescriptor> sockets_;  ///< by rank
};

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// The reduce-scatter and the all-gather of the parts, in which each rank sends to all others.
class PlainSocketReducer final : public AllReducer {
 public:
  PlainSocketReducer(const Communicator& communicator, const Environment& environment)
      : rank_(communicator.rank()), size_(communicator.size()), sockets_(communicator, environment) {}

  std::string name() const override { return plain_socket; }

  void sum(const at::Tensor& tensor) override {
    const auto own = part(tensor, rank_);
    if (!received_.defined() || received_.numel() != own.numel() * size_ || received_.dtype() != tensor.dtype()) {
      received_ = at::empty({size_, own.numel()}, tensor.options());
    }
    exchange([&](int peer) { return Transfer{.out = bytes_of(part(tensor, peer)), .in = bytes_of(received_[peer])}; });
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) own.add_(received_[peer]);
    }
    exchange([&](int peer) { return Transfer{.out = bytes_of(own), .in = bytes_of(part(tensor, peer))}; });
  }

 private:
  at::Tensor part(const at::Tensor& tensor, std::int64_t rank) const {
    const auto begin = tensor.numel() * rank / size_;
    return tensor.narrow(0, begin, tensor.numel() * (rank + 1) / size_ - begin);
  }

  template <typename TransferWith>
  void exchange(const TransferWith& transfer_with) const {
    std::vector<Transfer> transfers(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) transfers[static_cast<std::size_t>(peer)] = transfer_with(peer);
    }
    sockets_.exchange(std::move(transfers));
  }

  int rank_;
  int size_;
  PlainSockets sockets_;
  at::Tensor received_{};
};

}  // namespace

std::unique_ptr<AllReducer> make_plain_socket_reducer(const Communicator& communicator,
                                                      const Environment& environment) {
  return std::make_unique<PlainSocketReducer>(communicator, environment);
}

}  // namespace tutti::bench
