// The only file that sees Gloo's headers. They are an older release than the Gloo inside LibTorch: no Gloo object is
// constructed here and no Gloo type subclassed; all goes through c10d.
#include "comm/transport/gloo/gloo_connections.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/os/sigpipe_guard.h"
#include "comm/transport/gloo/tag_layout.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

constexpr int shutdown_tag = gloo_tag(control_channel, {.operation = 1, .phase = Phase::data}, 1);

using GlooWork = c10::intrusive_ptr<c10d::Work>;

class GlooPendingMessage final : public PendingMessage {
 public:
  explicit GlooPendingMessage(GlooWork work) : work_(std::move(work)) {}

  bool wait() override {
    // A wait that times out closes all connections: waits are ended by abort() only.
    constexpr std::chrono::milliseconds forever = std::chrono::hours(24 * 365);
    return work_->wait(forever);
  }
  void abort() noexcept override { work_->abort(); }

 private:
  GlooWork work_;
};

c10::intrusive_ptr<c10d::ProcessGroupGloo> make_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                              const BindAddress& bind_address, int rank, int size,
                                                              std::chrono::milliseconds timeout) {
  const SigpipeGuard guard;                             // also for the thread that Gloo starts here
  const ScopedThreadName gloo_thread("tutti-gloo-io");  // likewise
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  constexpr bool lazy_init = true;
  options->devices = {bind_address.interface.empty()
                          ? c10d::ProcessGroupGloo::createDeviceForHostname(bind_address.address, lazy_init)
                          : c10d::ProcessGroupGloo::createDeviceForInterface(bind_address.interface, lazy_init)};
  options->threads = 1;  // they run collectives; tutti's own transport calls none
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options));
}

class GlooConnections final : public Connections {
 public:
  GlooConnections(const Rendezvous& rendezvous, const BindAddress& bind_address, int rank, int size,
                  std::chrono::milliseconds timeout)
      : connected_(static_cast<std::size_t>(size)) {
    process_group_ = make_process_group(rendezvous.store, bind_address, rank, size, timeout);
  }

  std::unique_ptr<PendingMessage> post(bool send, int peer, int tag, const Buffer& block) override {
    std::vector<at::Tensor> tensors{at::from_blob(
        block.data, {static_cast<std::int64_t>(block.size)}, [owner = block.owner](void*) {}, at::kByte)};
    const SigpipeGuard guard;
    // One call at a time: c10d counts them without a lock. Not the one that waits for a peer to connect, who may wait
    // for what another thread of this process has to send.
    auto& connected = connected_.at(static_cast<std::size_t>(peer));
    std::unique_lock lock(post_mutex_, std::defer_lock);
    if (connected) lock.lock();
    auto work = send ? process_group_->send(tensors, peer, tag) : process_group_->recv(tensors, peer, tag);
    connected = true;
    return std::make_unique<GlooPendingMessage>(std::move(work));
  }

  // A receive that times out is the one way to make Gloo close its connections: all of them at once. Otherwise
  // its thread would read data for ever that no receive takes.
  void close() noexcept override {
    const SigpipeGuard guard;
    const std::lock_guard lock(post_mutex_);
    for (int peer = 0; std::cmp_less(peer, connected_.size()); ++peer) {
      if (!connected_[static_cast<std::size_t>(peer)]) continue;
      std::vector<at::Tensor> unused{at::empty({1}, at::kByte)};
      try {
        process_group_->recv(unused, peer, shutdown_tag)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception& error) {
        // Where this peer's connection was closed already, the next one is asked.
        if (std::string_view(error.what()).find("Timed out") != std::string_view::npos) return;
      }
    }
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  std::vector<std::atomic<bool>> connected_;  // by rank
  std::mutex post_mutex_;
};

}  // namespace

std::unique_ptr<Connections> make_gloo_connections(const Rendezvous& rendezvous, const BindAddress& bind_address,
                                                   int rank, int size, std::chrono::milliseconds timeout) {
  return std::make_unique<GlooConnections>(rendezvous, bind_address, rank, size, timeout);
}

c10::intrusive_ptr<c10d::Backend> make_c10d_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group,
                                                 const BindAddress& bind_address, int rank, int size,
                                                 std::chrono::milliseconds timeout) {
  return make_process_group(c10::make_intrusive<c10d::PrefixStore>("c10d_gloo/" + group, store), bind_address, rank,
                            size, timeout);
}

}  // namespace tutti::comm
