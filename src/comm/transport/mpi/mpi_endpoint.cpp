#include "comm/transport/mpi/mpi_endpoint.h"

#include <string>
#include <thread>
#include <utility>

namespace tutti::comm {
namespace {

constexpr auto close_grace = std::chrono::milliseconds(200);
constexpr auto cancel_timeout = std::chrono::milliseconds(100);
constexpr auto mpi_poll_interval = std::chrono::microseconds(200);

Buffer make_byte_buffer(bool value) {
  const auto byte = std::make_shared<std::byte>(static_cast<std::byte>(value));
  return {byte.get(), 1, byte};
}

}  // namespace

MpiEndpoint::MpiEndpoint(const MpiApi& api, MpiGroup* group, MpiTags tags, int rank, int size)
    : api_(api), group_(group), tags_(tags), rank_(rank), peers_(static_cast<std::size_t>(size)) {
  try {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      peers_[static_cast<std::size_t>(peer)].close_receive = start(false, peer, tags_.close(), make_byte_buffer(false));
    }
  } catch (const TransferError&) {  // of a later peer: MPI still writes to the memory of the earlier ones
    MpiRequests started;
    for (const Peer& peer : peers_) {
      if (peer.close_receive) started.push_back(peer.close_receive);
    }
    orphaned_->keep(std::move(started));
    throw;
  }
}

std::shared_ptr<MpiRequest> MpiEndpoint::post(bool send, int peer, Tag tag, const Buffer& block) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw TransferError(TransferError::Kind::connection_closed, {peer}, "connection closed");
  auto request = start(send, peer, tags_.message(tag, block.size), block);
  in_flight_.insert(request);
  return request;
}

std::shared_ptr<MpiRequest> MpiEndpoint::start(bool send, int peer, int tag, const Buffer& block) {
  auto request = std::make_shared<MpiRequest>();
  request->block = block;
  request->peer = peer;
  const char* const error = api_.start(group_, !send, peer, tag, block.data, block.size, &request->message);
  if (error == nullptr) return request;
  if (request->message != nullptr) orphaned_->keep({request});
  throw TransferError(TransferError::Kind::connection_closed, {peer}, error);
}

bool MpiEndpoint::is_complete(const std::shared_ptr<MpiRequest>& request) {
  const auto closed = [&](const std::string& error) {
    return TransferError(TransferError::Kind::connection_closed, {request->peer}, error);
  };
  const std::lock_guard lock(mutex_);
  if (closed_) throw closed("connection closed");
  const char* error = nullptr;
  const auto state = api_.test(request->message, &error);
  if (state == MpiApi::State::failed) throw closed(error);
  if (state == MpiApi::State::done) {
    api_.free_message(std::exchange(request->message, nullptr));
    in_flight_.erase(request);
    return true;
  }
  Peer& peer = peers_[static_cast<std::size_t>(request->peer)];
  if (has_closed(peer, peer.receive_deadline)) throw closed("connection closed by the peer");
  return false;
}

bool MpiEndpoint::has_closed(int peer) {
  const std::lock_guard lock(mutex_);
  Peer& asked = peers_[static_cast<std::size_t>(peer)];
  return !closed_ && has_closed(asked, asked.close_deadline);
}

// Messages of one sender come in order, but for the end of a long one.
bool MpiEndpoint::has_closed(Peer& peer, std::optional<Deadline>& deadline) {
  if (!deadline) {
    const char* error = nullptr;
    if (api_.test(peer.close_receive->message, &error) == MpiApi::State::pending) return false;
    deadline = Clock::now() + close_grace;
  }
  return Clock::now() > *deadline;
}

void MpiEndpoint::close() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  MpiRequests messages(in_flight_.begin(), in_flight_.end());
  in_flight_.clear();
  erase_idle(api_, messages);
  const bool in_order = messages.empty();
  if (!in_order) orphaned_->note_failure();
  send_close(in_order);

  for (const auto& request : messages) api_.cancel(request->message);
  const auto deadline = Clock::now() + cancel_timeout;
  while (!messages.empty() && Clock::now() < deadline) {
    erase_idle(api_, messages);
    if (!messages.empty()) std::this_thread::sleep_for(mpi_poll_interval);
  }
  orphaned_->keep(std::move(messages));
}

void MpiEndpoint::send_close(bool in_order) {
  MpiRequests sent;
  MpiRequests received;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    received.push_back(peers_[peer].close_receive);
    try {
      sent.push_back(start(true, static_cast<int>(peer), tags_.close(), make_byte_buffer(in_order)));
    } catch (const TransferError&) {
      // MPI is finalised, or has lost that rank: the message has no receiver.
    }
  }
  orphaned_->add(api_, group_, std::move(sent), std::move(received));
}

}  // namespace tutti::comm
