#include "comm/mesh/mesh.h"

#include <atomic>
#include <cstddef>
#include <exception>
#include <iterator>
#include <span>
#include <utility>

#include "comm/mesh/tags.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Then those that were heard are let go.
constexpr std::size_t most_words_kept = 256;

constexpr Tag word_tag{.operation = 0, .phase = Phase::data};
constexpr Tag proof_tag{.operation = 0, .phase = Phase::exchange};

// What says that a channel is over, by the label that the one who hears it gave to it; never 0.
std::uint64_t word_of(const Label& label) {
  return std::uint64_t{label.turn} << 32 | static_cast<std::uint64_t>(label.number) << 1 | 1U;
}
Label label_in(std::uint64_t word) {
  return {.number = static_cast<int>(word >> 1 & (most_channels - 1)), .turn = static_cast<std::uint32_t>(word >> 32)};
}

Block own_block(std::vector<std::byte> bytes) {
  const auto memory = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {memory->data(), memory->size(), memory};
}

}  // namespace

// Another rank that this one has talked to.
struct Mesh::Peer {
  explicit Peer(int rank_) : rank(rank_) {}

  const int rank;
  std::once_flag connected;

  // The next word from it is received here, whenever it comes.
  std::shared_ptr<std::uint64_t> word;
  std::unique_ptr<UnderWay> next_word;

  std::mutex proving;
  bool is_proven = false;
  Block proof;
  std::unique_ptr<UnderWay> proof_received;
  std::unique_ptr<UnderWay> proof_sent;
};

Mesh::Mesh(Connect connect, int rank, int size, JobSecretPtr secret, std::shared_ptr<Pulse> pulse)
    : connect_(std::move(connect)), rank_(rank), pulse_(std::move(pulse)), words_(std::move(secret), rank) {
  for (int peer = 0; peer < size; ++peer) peers_.push_back(std::make_unique<Peer>(peer));
}

Mesh::~Mesh() {
  if (connections_) connections_->close();
}

std::shared_ptr<MeshChannel> Mesh::open() {
  {
    const std::lock_guard lock(connecting_);
    if (!connections_) {
      connections_ = connect_();
      waits_ = std::make_unique<Waits>([this] { read_words(); });
      if (pulse_) alarm_ = pulse_->when_given_up([this](const GivenUp&) { waits_->hurry(); });
    }
  }
  const std::lock_guard lock(mutex_);
  const auto label = labels_.take();
  if (!label) {
    throw Error("rank " + std::to_string(rank_) + " has " + std::to_string(channel_of_words) +
                " groups and channels that send messages, and no more fit. Let go of some, or use shared_duplicate().");
  }
  auto channel = std::make_shared<MeshChannel>(shared_from_this(), *label);
  channels_.emplace(label->number, channel.get());
  return channel;
}

std::string Mesh::with_challenge(const std::string& text) const {
  const std::lock_guard lock(mutex_);
  return words_.with_challenge(text);
}

std::vector<std::string> Mesh::without_challenges(const std::vector<std::string>& all, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  return words_.without_challenges(all, ranks);
}

void Mesh::meet(const std::vector<int>& peers, Deadline deadline) {
  for (const int peer : peers) connect_to(peer);
  if (!words_.are_needed()) return;
  for (const int peer : peers) prove(peer, deadline);
}

void Mesh::connect_to(int rank) {
  Peer& peer = *peers_.at(static_cast<std::size_t>(rank));
  std::call_once(peer.connected, [&] {
    await_word(peer);
    if (words_.are_needed()) {
      std::unique_lock lock(mutex_);
      const auto own = own_block(words_.to(rank));
      lock.unlock();
      peer.proof = own_block(std::vector<std::byte>(FirstWords::size));
      const int tag = mesh_tag(channel_of_words, proof_tag, FirstWords::size);
      peer.proof_received = connections_->post(false, rank, tag, peer.proof);
      peer.proof_sent = connections_->post(true, rank, tag, own);
    }
    const std::lock_guard lock(mutex_);
    met_.push_back(&peer);
  });
}

// Gloo lets in whoever reaches it: nothing else is sent before the proof is right.
void Mesh::prove(int rank, Deadline deadline) {
  Peer& peer = *peers_.at(static_cast<std::size_t>(rank));
  const std::lock_guard one_at_a_time(peer.proving);
  if (peer.is_proven) return;
  wait(*peer.proof_received, rank, deadline);
  wait(*peer.proof_sent, rank, deadline);
  const std::lock_guard lock(mutex_);
  peer.is_proven = words_.are_from(rank, std::span(peer.proof.data, peer.proof.size));
  if (peer.is_proven) return;
  throw TransferError(TransferError::Kind::closed, {rank},
                      "whoever answers in its place does not know the job's secret");
}

void Mesh::wait(UnderWay& message, int rank, Deadline deadline) {
  waits_->wait(message, {.deadline = deadline,
                         .why_to_end = [&](Deadline now) -> std::optional<TransferError> {
                           if (now < deadline) return std::nullopt;
                           return TransferError(TransferError::Kind::timeout, {rank}, "it did not answer");
                         },
                         .say_so = [](std::chrono::seconds) {}});
}

void Mesh::await_word(Peer& peer) {
  peer.word = std::make_shared<std::uint64_t>(0);
  const Block block{reinterpret_cast<std::byte*>(peer.word.get()), sizeof(*peer.word), peer.word};
  peer.next_word = connections_->post(false, peer.rank, mesh_tag(channel_of_words, word_tag, block.size), block);
}

// A word has come once it is no zero: asking Gloo would be to wait for it.
void Mesh::read_words() {
  std::unique_lock lock(mutex_);
  const auto peers = met_;
  lock.unlock();
  for (Peer* const peer : peers) {
    if (std::atomic_ref(*peer->word).load(std::memory_order_acquire) == 0) continue;
    try {
      if (!peer->next_word->wait()) continue;
      const Label label = label_in(*peer->word);
      lock.lock();
      const auto channel = channels_.find(label.number);
      if (channel != channels_.end() && channel->second->label_ == label) channel->second->left_.insert(peer->rank);
      lock.unlock();
      await_word(*peer);
    } catch (const std::exception&) {
      // The connection has ended, as who waits will see.
      *peer->word = 0;
    }
  }
}

void Mesh::say_over(int peer, const Label& label) noexcept {
  try {
    const auto word = std::make_shared<std::uint64_t>(word_of(label));
    const Block block{reinterpret_cast<std::byte*>(word.get()), sizeof(*word), word};
    auto said = connections_->post(true, peer, mesh_tag(channel_of_words, word_tag, block.size), block);
    std::unique_lock lock(mutex_);
    words_said_.push_back(std::move(said));
    if (words_said_.size() < most_words_kept) return;
    lock.unlock();
    forget_words_that_were_heard();
  } catch (const std::exception&) {
    // The connection has ended, which says the same.
  }
}

void Mesh::forget_words_that_were_heard() {
  std::unique_lock lock(mutex_);
  auto words = std::exchange(words_said_, {});
  lock.unlock();
  std::erase_if(words, [&](const std::unique_ptr<UnderWay>& word) {
    try {
      wait(*word, rank_, Clock::now());
      return true;
    } catch (const TransferError&) {
      return false;
    } catch (const std::exception&) {
      return true;  // the connection has ended
    }
  });
  lock.lock();
  words_said_.insert(words_said_.end(), std::make_move_iterator(words.begin()), std::make_move_iterator(words.end()));
}

}  // namespace tutti::comm
