#include "comm/mpi/mailbox.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

namespace tutti::comm {
namespace {

constexpr auto after_goodbye = std::chrono::milliseconds(200);
constexpr auto for_cancelling = std::chrono::milliseconds(100);
constexpr auto between_polls = std::chrono::microseconds(200);

Block byte_of(bool value) {
  const auto byte = std::make_shared<std::byte>(static_cast<std::byte>(value));
  return {byte.get(), 1, byte};
}

}  // namespace

MpiMailbox::MpiMailbox(const MpiFunctions& functions, MpiGroup* group, MpiTags tags, int rank, int size)
    : functions_(functions), group_(group), tags_(tags), rank_(rank), peers_(static_cast<std::size_t>(size)) {
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    peers_[static_cast<std::size_t>(peer)].goodbye = start(false, peer, tags_.goodbye(), byte_of(false));
  }
}

MpiMailbox::~MpiMailbox() {
  close();
}

std::shared_ptr<MpiMail> MpiMailbox::post(bool send, int peer, Tag tag, const Block& block) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw TransferError(TransferError::Kind::closed, {peer}, "connection closed");
  auto mail = start(send, peer, tags_.message(tag, block.size), block);
  under_way_.insert(mail);
  return mail;
}

std::shared_ptr<MpiMail> MpiMailbox::start(bool send, int peer, int tag, const Block& block) {
  auto mail = std::make_shared<MpiMail>();
  mail->block = block;
  mail->peer = peer;
  const char* const why = send ? functions_.send(group_, peer, tag, block.data, block.size, &mail->message)
                               : functions_.receive(group_, peer, tag, block.data, block.size, &mail->message);
  if (why == nullptr) return mail;
  if (mail->message != nullptr) remains_->keep({mail});
  throw TransferError(TransferError::Kind::closed, {peer}, why);
}

bool MpiMailbox::has_ended(const std::shared_ptr<MpiMail>& mail) {
  const auto closed = [&](const std::string& why) {
    return TransferError(TransferError::Kind::closed, {mail->peer}, why);
  };
  const std::lock_guard lock(mutex_);
  if (closed_) throw closed("connection closed");
  const char* why = nullptr;
  const auto state = functions_.look(mail->message, &why);
  if (state == MpiFunctions::State::failed) throw closed(why);
  if (state == MpiFunctions::State::done) {
    functions_.free_message(std::exchange(mail->message, nullptr));
    under_way_.erase(mail);
    return true;
  }
  if (has_left(peers_[static_cast<std::size_t>(mail->peer)])) throw closed("connection closed by the peer");
  return false;
}

// Messages of one sender come in order, but for the end of a long one.
bool MpiMailbox::has_left(Peer& peer) {
  if (!peer.last_chance) {
    const char* why = nullptr;
    if (functions_.look(peer.goodbye->message, &why) == MpiFunctions::State::pending) return false;
    peer.last_chance = Clock::now() + after_goodbye;
  }
  return Clock::now() > *peer.last_chance;
}

void MpiMailbox::close() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  MpiMails messages(under_way_.begin(), under_way_.end());
  under_way_.clear();
  erase_idle(functions_, messages);
  const bool in_order = messages.empty();
  if (!in_order) remains_->note_failure();
  say_goodbye(in_order);

  for (const auto& mail : messages) functions_.cancel(mail->message);
  const auto deadline = Clock::now() + for_cancelling;
  while (!messages.empty() && Clock::now() < deadline) {
    erase_idle(functions_, messages);
    if (!messages.empty()) std::this_thread::sleep_for(between_polls);
  }
  remains_->keep(std::move(messages));
}

void MpiMailbox::say_goodbye(bool in_order) {
  MpiMails sent;
  MpiMails received;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    received.push_back(peers_[peer].goodbye);
    try {
      sent.push_back(start(true, static_cast<int>(peer), tags_.goodbye(), byte_of(in_order)));
    } catch (const TransferError&) {
      // MPI has ended, or lost that rank: there is nobody to tell.
    }
  }
  remains_->add(functions_, group_, std::move(sent), std::move(received));
}

}  // namespace tutti::comm
