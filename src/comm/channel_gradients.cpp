// The part of a channel for gradient rounds: operations in steps, started on one thread and completed on another.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/channel.h"
#include "tutti/detail/comm/inner_call.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {
namespace {

// What start_sum() and start_exchange() hand out: the engine's object with the channel's treatment of failures.
template <typename Pending>
class Guarded : public Pending {
 public:
  Guarded(std::shared_ptr<Channel> channel, Operation operation, std::unique_ptr<Pending> pending)
      : channel_(std::move(channel)), operation_(std::move(operation)), pending_(std::move(pending)) {}
  ~Guarded() override {
    if (!finished_) channel_->abandon(operation_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

 protected:
  template <typename Step>
  auto run(const Step& step) {
    return channel_->guarded(operation_, step);
  }
  void end() {
    finished_ = true;
    channel_->finished(operation_);
  }

  std::shared_ptr<Channel> channel_;
  Operation operation_;
  std::unique_ptr<Pending> pending_;
  bool finished_ = false;
};

class GuardedSum final : public Guarded<PendingSum> {
 public:
  using Guarded::Guarded;
  void reduce(double scale) override {
    run([&] { pending_->reduce(scale); });
  }
  void finish() override {
    run([&] { pending_->finish(); });
    end();
  }
  void join() const override { pending_->join(); }
  std::int64_t bytes_sent() const override { return pending_->bytes_sent(); }
};

class GuardedExchange final : public Guarded<PendingExchange> {
 public:
  using Guarded::Guarded;
  std::span<const std::byte> finish() override {
    const auto blocks = run([&] { return pending_->finish(); });
    end();
    return blocks;
  }
};

/// Lengths travel first, then all blocks as long as the longest. It is one operation to the outside, two on the wire.
class GuardedGather final : public PendingGather {
 public:
  GuardedGather(std::shared_ptr<Channel> channel, Operation operation, std::unique_ptr<PendingExchange> lengths,
                std::vector<std::byte> mine)
      : channel_(std::move(channel)),
        operation_(std::move(operation)),
        lengths_(std::move(lengths)),
        mine_(std::move(mine)) {}

  std::vector<std::span<const std::byte>> finish() override {
    const auto said = lengths_->finish();
    std::vector<std::uint64_t> lengths(said.size() / sizeof(std::uint64_t));
    std::memcpy(lengths.data(), said.data(), said.size());
    const std::uint64_t longest = longest_of(lengths);
    all_ = at::empty({static_cast<std::int64_t>(lengths.size()), static_cast<std::int64_t>(longest)}, at::kByte);
    if (longest > 0) {
      // In memory that outlives a failure: the others may still read it.
      const at::Tensor input = at::empty({static_cast<std::int64_t>(longest)}, at::kByte);
      std::ranges::copy(mine_, static_cast<std::byte*>(input.data_ptr()));
      channel_->guarded(operation_, [&] { channel_->engine().all_gather(operation_, all_, input); });
    }
    channel_->finished(operation_);
    std::vector<std::span<const std::byte>> blocks;
    const auto* memory = static_cast<const std::byte*>(all_.const_data_ptr());
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
      blocks.emplace_back(memory + rank * longest, lengths[rank]);
    }
    return blocks;
  }

 private:
  std::shared_ptr<Channel> channel_;
  Operation operation_;
  std::unique_ptr<PendingExchange> lengths_;
  std::vector<std::byte> mine_;
  at::Tensor all_;
};

}  // namespace

at::Tensor Channel::allocate(std::int64_t bytes, at::Device device) {
  const std::lock_guard lock(order_mutex_);
  const auto operation = next_operation("allocate", inner_call(), "allocate", static_cast<std::uint64_t>(bytes));
  at::Tensor memory;
  const auto run = [&] {
    write_down_start(operation);
    memory = guarded(operation, [&] {
      return engine_->sums_on(device.type()) ? engine_->allocate_on(operation, device, bytes)
                                             : engine_->allocate(operation, bytes);
    });
    finished(operation);
  };
  // After the calls that came before it, on all ranks: these may share memory too, and offers meet in order.
  if (worker_.idle()) {
    run();
  } else {
    watched(worker_.submit(run))->wait();
  }
  return memory;
}

std::unique_ptr<PendingSum> Channel::start_sum(const at::Tensor& flat, const std::shared_ptr<const WireCodec>& codec) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("gradient sum", inner_call(), "gradient sum", flat.nbytes());
  lock.unlock();
  write_down_start(operation);
  auto pending = guarded(operation, [&] { return engine_->start_sum(operation, flat, codec); });
  return std::make_unique<GuardedSum>(shared_from_this(), operation, std::move(pending));
}

std::unique_ptr<PendingExchange> Channel::start_exchange(std::span<const std::byte> mine) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("gradient exchange", inner_call(), "gradient exchange", mine.size());
  lock.unlock();
  write_down_start(operation);
  auto pending = guarded(operation, [&] { return engine_->start_exchange(operation, mine); });
  return std::make_unique<GuardedExchange>(shared_from_this(), operation, std::move(pending));
}

std::unique_ptr<PendingGather> Channel::start_gather(std::vector<std::byte> mine) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("gradient gather", inner_call(), "gradient gather, lengths");
  const auto second = next_operation("gradient gather", inner_call(), "gradient gather", mine.size());
  lock.unlock();
  write_down_start(operation);
  write_down_start(second);
  const std::uint64_t length = mine.size();
  auto lengths =
      guarded(operation, [&] { return engine_->start_exchange(operation, std::as_bytes(std::span(&length, 1))); });
  return std::make_unique<GuardedGather>(
      shared_from_this(), second, std::make_unique<GuardedExchange>(shared_from_this(), operation, std::move(lengths)),
      std::move(mine));
}

}  // namespace tutti::comm
