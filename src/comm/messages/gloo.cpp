// The only file that sees Gloo's headers. They are an older release than the Gloo inside LibTorch: no Gloo object is
// constructed here and no Gloo type subclassed; all goes through c10d.
#include "comm/messages/gloo.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/meeting/without_sigpipe.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr std::uint64_t connecting = ~std::uint64_t{0};
constexpr std::uint64_t closing = connecting - 1;

// c10d's tags are 31 bits: 16 of the operation's number, 3 of the phase, 12 of a hash of the length.
int wire_tag(Tag tag, std::size_t length) {
  const auto number = static_cast<std::uint32_t>(tag.operation & 0xffff);
  const auto phase = static_cast<std::uint32_t>(tag.phase);
  const auto hash = static_cast<std::uint32_t>((std::uint64_t{length} * 0x9e3779b97f4a7c15U) >> 52);
  return static_cast<int>(number << 15 | phase << 12 | hash);
}

// What the transfers of one group share.
class Group {
 public:
  explicit Group(c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group) : process_group_(std::move(process_group)) {}

  // c10d counts calls without a lock.
  c10::intrusive_ptr<c10d::Work> post(bool send, int peer, int tag, at::Tensor bytes) {
    const WithoutSigpipe guard;
    const std::lock_guard lock(mutex_);
    std::vector<at::Tensor> tensors{std::move(bytes)};
    return send ? process_group_->send(tensors, peer, tag) : process_group_->recv(tensors, peer, tag);
  }

  // When one wait times out Gloo closes all connections, which ends the waits of other threads too: these must not
  // blame the peer that they happen to wait for.
  void note_timeout(int peer) {
    const std::lock_guard lock(mutex_);
    late_.push_back(peer);
    noted_.notify_all();
  }
  std::vector<int> late_peers() {
    std::unique_lock lock(mutex_);
    noted_.wait_for(lock, std::chrono::seconds(1), [&] { return !late_.empty(); });
    return late_;
  }

  // Its memory may still be written to: kept until the connections are closed.
  void bury(c10::intrusive_ptr<c10d::Work> work) {
    const std::lock_guard lock(mutex_);
    buried_.push_back(std::move(work));
  }
  bool has_buried() {
    const std::lock_guard lock(mutex_);
    return !buried_.empty();
  }

  // A receive that times out is the one way to make Gloo close its connections.
  void close(int rank, int size) noexcept {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      try {
        post(false, peer, wire_tag({closing, Phase::exchange}, 1), at::empty({1}, at::kByte))
            ->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // This is how it ends, and how it begins where the connection is closed already.
      }
    }
    const std::lock_guard lock(mutex_);
    buried_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::vector<int> late_;
  std::vector<c10::intrusive_ptr<c10d::Work>> buried_;
};

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(std::shared_ptr<Group> group, c10::intrusive_ptr<c10d::Work> work, int peer)
      : group_(std::move(group)), work_(std::move(work)), peer_(peer) {}
  ~GlooTransfer() override {
    if (work_) group_->bury(std::move(work_));
  }

  int peer() const override { return peer_; }

  void wait(Deadline deadline) override {
    using std::chrono::milliseconds;
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      work_->wait(std::max(left, milliseconds(1)));
      work_.reset();
    } catch (const std::exception& error) {
      const std::string cause = error.what();
      if (cause.find("Application timeout") != std::string::npos && Clock::now() < deadline) {
        throw TransferError(TransferError::Kind::timeout, group_->late_peers(), cause);
      }
      if (Clock::now() < deadline) throw TransferError(TransferError::Kind::closed, {peer_}, cause);
      group_->note_timeout(peer_);
      throw TransferError(TransferError::Kind::timeout, {peer_}, cause);
    }
  }

 private:
  std::shared_ptr<Group> group_;
  c10::intrusive_ptr<c10d::Work> work_;
  int peer_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(Rendezvous rendezvous, GlooPlace place, std::shared_ptr<Group> group, int rank, int size)
      : rendezvous_(std::move(rendezvous)),
        place_(std::move(place)),
        group_(std::move(group)),
        rank_(rank),
        size_(size) {}
  ~GlooTransport() override {
    if (group_->has_buried()) close();
  }

  const std::string& name() const override {
    static const std::string name = "gloo";
    return name;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Block& block) override {
    return post(true, peer, tag, block);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Block& block) override {
    return post(false, peer, tag, block);
  }

  std::shared_ptr<Transport> connect_again(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) override {
    const auto rendezvous = rendezvous_of_group(rendezvous_, name, members);
    const auto rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    const auto size = static_cast<int>(members.size());
    meet(rendezvous, rank, size, timeout);
    return connect_gloo(rendezvous, place_, rank, size, timeout);
  }

  std::shared_ptr<Bulletin> bulletin() override { return make_store_bulletin(rendezvous_, size_); }
  void close() noexcept override { group_->close(rank_, size_); }

 private:
  std::unique_ptr<Transfer> post(bool send, int peer, Tag tag, const Block& block) {
    auto bytes = at::from_blob(
        block.data, {static_cast<std::int64_t>(block.size)}, [owner = block.owner](void*) {}, at::kByte);
    try {
      auto work = group_->post(send, peer, wire_tag(tag, block.size), std::move(bytes));
      return std::make_unique<GlooTransfer>(group_, std::move(work), peer);
    } catch (const std::exception& error) {
      throw TransferError(TransferError::Kind::closed, {peer}, error.what());
    }
  }

  Rendezvous rendezvous_;
  GlooPlace place_;
  std::shared_ptr<Group> group_;
  int rank_;
  int size_;
};

// Gloo connects in the background. One byte from everyone to everyone: after it no start of an operation has to wait.
void try_connections(Transport& transport, std::chrono::milliseconds timeout) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(transport.size()));
  const Block all{bytes->data(), bytes->size(), bytes};
  const Tag tag{connecting, Phase::exchange};
  Transfers transfers;
  const auto each_peer = [&](const auto& visit) {
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer != transport.rank()) visit(peer);
    }
  };
  const auto byte_of = [&](int rank) { return all.part(static_cast<std::size_t>(rank), 1); };
  each_peer([&](int peer) { transfers.push_back(transport.post_receive(peer, tag, byte_of(peer))); });
  each_peer([&](int peer) { transfers.push_back(transport.post_send(peer, tag, byte_of(transport.rank()))); });
  wait_all(transfers, Clock::now() + timeout);
}

}  // namespace

std::shared_ptr<Transport> connect_gloo(const Rendezvous& rendezvous, const GlooPlace& place, int rank, int size,
                                        std::chrono::milliseconds timeout) {
  const WithoutSigpipe guard;  // also for the threads that Gloo starts here
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(place.interface.empty()
                                   ? c10d::ProcessGroupGloo::createDeviceForHostname(place.address)
                                   : c10d::ProcessGroupGloo::createDeviceForInterface(place.interface));
    auto group = std::make_shared<Group>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(rendezvous.store, rank, size, std::move(options)));
    auto transport = std::make_shared<GlooTransport>(rendezvous, place, std::move(group), rank, size);
    try_connections(*transport, timeout);
    return transport;
  } catch (const TransferError& error) {
    throw PeerFailure(
        "Connecting over Gloo: no answer from " + describe_ranks(error.peers()) + " (" + error.what() + ")",
        error.peers());
  } catch (const std::exception& error) {
    const std::string where = place.interface.empty() ? place.address : "interface " + place.interface;
    throw PeerFailure("Connecting over Gloo (listening on " + where + ") failed: " + error.what(), {});
  }
}

}  // namespace tutti::comm
