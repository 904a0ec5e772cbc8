// The operations of OperationQueue for gradient synchronization: one thread starts them, another completes them.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "comm/operation_queue.h"
#include "device/side_stream.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {
namespace {

// Runs one step of `operation`. After any exception aborts the queue: the later steps must not run on a sum that has
// not ended, and the other ranks wait in it.
template <typename Step>
auto run_or_abort(OperationQueue& queue, const Operation& operation, const Step& step) {
  try {
    return queue.run_checked(operation, step);
  } catch (...) {
    queue.abort_unfinished(operation);
    throw;
  }
}

// Wraps the pending operation of the backend, if there is one. Destroying it before the operation has completed aborts
// the queue.
template <typename Pending>
class Checked : public Pending {
 public:
  Checked(std::shared_ptr<OperationQueue> queue, Operation operation, std::unique_ptr<Pending> pending)
      : queue_(std::move(queue)), operation_(std::move(operation)), pending_(std::move(pending)) {}
  ~Checked() override {
    if (!finished_) queue_->abort_unfinished(operation_);
  }
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;

 protected:
  template <typename Step>
  auto run(const Step& step) {
    if (failure_ && !queue_->failed()) std::rethrow_exception(failure_);  // one rank: the queue goes on
    try {
      return run_or_abort(*queue_, operation_, step);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }
  void end() {
    finished_ = true;
    queue_->mark_completed(operation_);
  }

  std::shared_ptr<OperationQueue> queue_;
  Operation operation_;
  std::unique_ptr<Pending> pending_;
  bool finished_ = false;
  std::exception_ptr failure_;
};

class CheckedAllReduce final : public Checked<PendingAllReduce> {
 public:
  using Checked::Checked;
  void finish_reduce_scatter(double scale) override {
    run([&] { pending_->finish_reduce_scatter(scale); });
  }
  void wait() override {
    run([&] { pending_->wait(); });
    end();
  }
  void block_current_stream() const override { pending_->block_current_stream(); }
  std::int64_t bytes_sent() const override { return pending_->bytes_sent(); }
};

class CheckedAllGather final : public Checked<PendingAllGather> {
 public:
  using Checked::Checked;
  std::span<const std::byte> wait() override {
    const auto blocks = run([&] { return pending_->wait(); });
    end();
    return blocks;
  }
};

/// Gathers the lengths, then all blocks padded to the longest. The caller sees one operation; the backend runs two.
class CheckedAllGatherV final : public Checked<PendingAllGatherV> {
 public:
  CheckedAllGatherV(std::shared_ptr<OperationQueue> queue, Operation operation,
                    std::unique_ptr<PendingAllGather> lengths, std::vector<std::byte> block)
      : Checked(std::move(queue), std::move(operation), nullptr),
        lengths_(std::move(lengths)),
        block_(std::move(block)) {}

  std::vector<std::span<const std::byte>> wait() override {
    const auto gathered = lengths_->wait();
    std::vector<std::uint64_t> lengths(gathered.size() / sizeof(std::uint64_t));
    std::memcpy(lengths.data(), gathered.data(), gathered.size());
    const std::uint64_t longest = run([&] {
      const std::uint64_t bytes = longest_of(lengths);
      all_ = at::empty({static_cast<std::int64_t>(lengths.size()), static_cast<std::int64_t>(bytes)}, at::kByte);
      if (bytes == 0) return bytes;
      // A tensor, because the memory must stay valid after a failure: other ranks may still read it.
      const at::Tensor input = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
      std::ranges::copy(block_, static_cast<std::byte*>(input.data_ptr()));
      queue_->backend().all_gather(operation_, all_, input);
      return bytes;
    });
    end();
    std::vector<std::span<const std::byte>> blocks;
    const auto* memory = static_cast<const std::byte*>(all_.const_data_ptr());
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
      blocks.emplace_back(memory + rank * longest, lengths[rank]);
    }
    return blocks;
  }

 private:
  std::unique_ptr<PendingAllGather> lengths_;
  std::vector<std::byte> block_;
  at::Tensor all_;
};

}  // namespace

at::Tensor OperationQueue::allocate(std::int64_t bytes, at::Device device) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("allocate", internal_call(), "allocate", static_cast<std::uint64_t>(bytes));
  at::Tensor memory;
  const auto run = [&] {
    record_start(operation);
    memory = run_checked(operation, [&] { return backend_->allocate(operation, bytes, device); });
    mark_completed(operation);
  };
  // In order with earlier calls on all ranks: those may share memory too, and ranks match the offers in order.
  if (worker_.idle()) {
    run();
    return memory;
  }
  std::optional<devices::StreamEvent> allocated;
  const auto work = track(worker_.submit([&] {
    run();
    allocated = devices::StreamEvent::on_current_stream(memory.device());
  }));
  lock.unlock();  // an earlier task may make a call of this queue
  work->wait();
  // The allocator gives the memory to the other thread's stream, on which kernels may still write to it.
  allocated->block_current_stream();
  devices::record_use_on_current_stream(memory);
  return memory;
}

std::unique_ptr<PendingAllReduce> OperationQueue::start_all_reduce(const at::Tensor& flat,
                                                                   const std::shared_ptr<const WireCodec>& codec) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("gradient sum", internal_call(), "gradient sum", flat.nbytes());
  lock.unlock();
  record_start(operation);
  auto pending = run_or_abort(*this, operation, [&] { return backend_->start_all_reduce(operation, flat, codec); });
  return std::make_unique<CheckedAllReduce>(shared_from_this(), operation, std::move(pending));
}

std::unique_ptr<PendingAllGather> OperationQueue::start_small_all_gather(std::span<const std::byte> block) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("gradient exchange", internal_call(), "gradient exchange", block.size());
  lock.unlock();
  record_start(operation);
  auto pending = run_or_abort(*this, operation, [&] { return backend_->start_small_all_gather(operation, block); });
  return std::make_unique<CheckedAllGather>(shared_from_this(), operation, std::move(pending));
}

std::unique_ptr<PendingAllGatherV> OperationQueue::start_all_gather_v(std::vector<std::byte> block) {
  std::unique_lock lock(order_mutex_);
  const auto operation = next_operation("gradient gather", internal_call(), "gradient gather(lengths)");
  const auto second = next_operation("gradient gather", internal_call(), "gradient gather", block.size());
  lock.unlock();
  record_start(operation);
  const std::uint64_t length = block.size();
  auto lengths = run_or_abort(*this, operation, [&] {
    return backend_->start_small_all_gather(operation, std::as_bytes(std::span(&length, 1)));
  });
  record_start(second);
  return std::make_unique<CheckedAllGatherV>(
      shared_from_this(), second, std::make_unique<CheckedAllGather>(shared_from_this(), operation, std::move(lengths)),
      std::move(block));
}

}  // namespace tutti::comm
