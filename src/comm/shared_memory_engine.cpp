#include "comm/shared_memory_engine.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "comm/combine.h"
#include "comm/message_sum.h"
#include "comm/shared_node.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

/// Both caches of a core hold this much of two versions and a result.
constexpr std::size_t bytes_at_once = std::size_t{128} << 10;

void log_fallback(const Engine& messages, const std::string& what, const std::string& reason) {
  Logger(messages.rank()).info(what + " goes over " + messages.name() + ", not through shared memory: " + reason);
}

/// The memory of one allocate(): the same offsets on every rank.
struct SharedAllocation {
  SegmentsByRank segments;
  std::byte* begin = nullptr;  // this rank's
  std::size_t bytes = 0;

  bool holds(const std::byte* data, std::size_t size) const { return data >= begin && data + size <= begin + bytes; }
};

// Sum number n of a channel, in place. Each rank owns a slice of it:
//   started(n)   this rank's version is complete; it does not touch the memory until the sum is finished.
//   reduce       waits until all have started n, adds up its slice, writes the result into everyone's memory, and says
//                reduced(n). Slices do not overlap, so every byte has one writer.
//   finish       waits until all have reduced n: every slice of this rank's memory holds its result, and nobody reads
//   or
//                writes it any more. Only then may the next version be written there.
// started and reduced rise by one with each sum, in the order in which sums are started, equal on all ranks.
class SharedSum final : public PendingSum {
 public:
  SharedSum(std::shared_ptr<SharedNode> node, Operation operation, std::shared_ptr<const SharedAllocation> allocation,
            const at::Tensor& flat, std::uint32_t number)
      : node_(std::move(node)),
        operation_(std::move(operation)),
        allocation_(std::move(allocation)),
        dtype_(flat.scalar_type()),
        elements_(static_cast<std::size_t>(flat.numel())),
        offset_(static_cast<std::size_t>(static_cast<const std::byte*>(flat.const_data_ptr()) - allocation_->begin)),
        number_(number) {
    node_->own().sums_started.advance_to(number_);
  }

  void reduce(double scale) override {
    node_->wait_for_all(&SharedRank::sums_started, number_, operation_.deadline());
    Combination sum;
    sum.rescale.factor = scale;
    const std::size_t width = c10::elementSize(dtype_);
    const Range slice = slice_of(elements_, width, node_->rank(), node_->size());
    const std::size_t at_once = bytes_at_once / width;
    for (std::size_t done = 0; done < slice.length; done += at_once) {
      const std::size_t length = std::min(at_once, slice.length - done);
      const std::size_t offset = offset_ + (slice.offset + done) * width;
      std::vector<const std::byte*> versions;
      for (int rank = 0; rank < node_->size(); ++rank) versions.push_back(memory_of(rank) + offset);
      std::byte* result = memory_of(node_->rank()) + offset;
      combine(versions, result, length, dtype_, sum);
      for (int rank = 0; rank < node_->size(); ++rank) {
        if (rank != node_->rank()) std::memcpy(memory_of(rank) + offset, result, length * width);
      }
    }
    node_->own().sums_reduced.advance_to(number_);
  }

  void finish() override { node_->wait_for_all(&SharedRank::sums_reduced, number_, operation_.deadline()); }

 private:
  std::byte* memory_of(int rank) const { return allocation_->segments[static_cast<std::size_t>(rank)]->data(); }

  std::shared_ptr<SharedNode> node_;
  Operation operation_;
  std::shared_ptr<const SharedAllocation> allocation_;
  at::ScalarType dtype_;
  std::size_t elements_;
  std::size_t offset_;
  std::uint32_t number_;
};

// Exchange number n of a channel uses mailbox n % mailboxes of every rank. A mailbox is written again only when all
// ranks have read what was in it `mailboxes` exchanges ago.
class SharedExchange final : public PendingExchange {
 public:
  SharedExchange(std::shared_ptr<SharedNode> node, Operation operation, std::span<const std::byte> mine,
                 std::uint32_t number)
      : node_(std::move(node)), operation_(std::move(operation)), length_(mine.size()), number_(number) {
    if (number_ > mailboxes)
      node_->wait_for_all(&SharedRank::exchanges_read, number_ - mailboxes, operation_.deadline());
    std::memcpy(node_->own().mailbox[number_ % mailboxes], mine.data(), mine.size());
    node_->own().exchanges_posted.advance_to(number_);
  }

  std::span<const std::byte> finish() override {
    node_->wait_for_all(&SharedRank::exchanges_posted, number_, operation_.deadline());
    all_.resize(length_ * static_cast<std::size_t>(node_->size()));
    for (int rank = 0; rank < node_->size(); ++rank) {
      std::memcpy(all_.data() + length_ * static_cast<std::size_t>(rank), node_->of(rank).mailbox[number_ % mailboxes],
                  length_);
    }
    node_->own().exchanges_read.advance_to(number_);
    return all_;
  }

 private:
  std::shared_ptr<SharedNode> node_;
  Operation operation_;
  std::size_t length_;
  std::uint32_t number_;
  std::vector<std::byte> all_;
};

class SharedMemoryEngine final : public Engine {
 public:
  SharedMemoryEngine(std::shared_ptr<Engine> messages, std::shared_ptr<SharedNode> node)
      : messages_(std::move(messages)), node_(std::move(node)), name_("shared memory + " + messages_->name()) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return messages_->rank(); }
  int size() const override { return messages_->size(); }
  const NodeLayout& layout() const override { return messages_->layout(); }

  std::unique_ptr<PendingSum> start_sum(const Operation& operation, const at::Tensor& flat) override {
    const std::lock_guard lock(mutex_);
    const auto allocation = allocation_of(flat);
    if (!allocation || flat.numel() == 0) return messages_->start_sum(operation, flat);
    return std::make_unique<SharedSum>(node_, operation, allocation, flat, ++sums_);
  }

  std::unique_ptr<PendingExchange> start_exchange(const Operation& operation,
                                                  std::span<const std::byte> mine) override {
    if (mine.size() > mailbox_bytes) return messages_->start_exchange(operation, mine);
    const std::lock_guard lock(mutex_);
    return std::make_unique<SharedExchange>(node_, operation, mine, ++exchanges_);
  }

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override {
    messages_->all_reduce(operation, flat, op);
  }
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    messages_->all_gather(operation, output, input);
  }
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override {
    messages_->reduce_scatter(operation, output, input, op);
  }
  void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    messages_->all_to_all(operation, output, input);
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override {
    messages_->broadcast(operation, tensor, root);
  }

  at::Tensor allocate(const Operation& operation, std::int64_t bytes) override {
    if (bytes == 0) return messages_->allocate(operation, bytes);
    std::string reason;
    auto allocation = std::make_shared<SharedAllocation>();
    allocation->segments = share_segments(*messages_, operation, static_cast<std::size_t>(bytes), reason);
    if (allocation->segments.empty()) {
      log_fallback(*messages_, "a gradient buffer of " + std::to_string(bytes) + " bytes", reason);
      return messages_->allocate(operation, bytes);
    }
    allocation->begin = allocation->segments[static_cast<std::size_t>(rank())]->data();
    allocation->bytes = static_cast<std::size_t>(bytes);
    const std::lock_guard lock(mutex_);
    std::erase_if(allocations_, [](const auto& known) { return known.expired(); });
    allocations_.push_back(allocation);
    return at::from_blob(
        allocation->begin, {bytes}, [allocation](void*) {}, at::kByte);
  }

  std::shared_ptr<Engine> connect_again(const std::vector<int>& members, const std::string& name,
                                        std::chrono::milliseconds timeout) override {
    std::string reason;
    const auto messages = messages_->connect_again(members, name, timeout);
    auto engine = make_shared_memory_engine(messages, timeout, reason);
    if (engine == messages && messages->size() > 1) log_fallback(*messages, "channel " + name, reason);
    return engine;
  }

  std::shared_ptr<Bulletin> bulletin() override { return messages_->bulletin(); }
  void close() noexcept override {
    node_->close();
    messages_->close();
  }

 private:
  std::shared_ptr<const SharedAllocation> allocation_of(const at::Tensor& flat) const {
    const auto* data = static_cast<const std::byte*>(flat.const_data_ptr());
    for (const auto& known : allocations_) {
      const auto allocation = known.lock();
      if (allocation && allocation->holds(data, flat.nbytes())) return allocation;
    }
    return nullptr;
  }

  std::shared_ptr<Engine> messages_;
  std::shared_ptr<SharedNode> node_;
  std::string name_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<const SharedAllocation>> allocations_;
  std::uint32_t sums_ = 0;
  std::uint32_t exchanges_ = 0;
};

}  // namespace

std::shared_ptr<Engine> make_shared_memory_engine(std::shared_ptr<Engine> messages, std::chrono::milliseconds timeout,
                                                  std::string& reason) {
  if (messages->size() == 1) return messages;
  const Operation operation{.number = 0, .what = "sharing memory", .name = "", .timeout = timeout};
  auto node = SharedNode::connect(*messages, operation, reason);
  if (!node) return messages;
  return std::make_shared<SharedMemoryEngine>(std::move(messages), std::move(node));
}

}  // namespace tutti::comm
