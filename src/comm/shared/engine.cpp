#include "comm/shared/engine.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "comm/shared/bulletin.h"
#include "comm/shared/exchange.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

/// A slot of the stage gives each rank a part.
constexpr int most_ranks = 1024;
/// Below it, asking whether a sum can be made in place costs more than two copies.
constexpr std::size_t worth_looking_for = std::size_t{64} << 10;

void log_fallback(const Engine& messages, const std::string& what, const std::string& reason) {
  if (messages.rank() != 0) return;
  Logger(0).warning(what + " goes over " + messages.name() + ", not through shared memory: " + reason);
}

}  // namespace

Operation sharing_memory(std::chrono::milliseconds timeout) {
  return {.number = 0, .what = "sharing memory", .name = "", .timeout = timeout};
}

SharedMemoryEngine::SharedMemoryEngine(const std::shared_ptr<Engine>& messages, ChooseEngine for_groups,
                                       std::shared_ptr<SharedNode> node)
    : ForwardingEngine(messages),
      for_groups_(std::move(for_groups)),
      node_(std::move(node)),
      name_("shared memory + " + messages->name()) {}

std::unique_ptr<PendingSum> SharedMemoryEngine::start_sum(const Operation& operation, const at::Tensor& flat,
                                                          const std::shared_ptr<const WireCodec>& codec) {
  const auto place = place_of(flat);
  if (!place || flat.numel() == 0) return below().start_sum(operation, flat, codec);
  return std::make_unique<SharedSum>(node_, operation, *place, flat, next_sum());
}

std::unique_ptr<PendingExchange> SharedMemoryEngine::start_exchange(const Operation& operation,
                                                                    std::span<const std::byte> mine) {
  if (mine.size() > mailbox_bytes) return below().start_exchange(operation, mine);
  const std::lock_guard lock(mutex_);
  return std::make_unique<SharedExchange>(node_, operation, mine, ++exchanges_);
}

void SharedMemoryEngine::all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) {
  if (const auto sum = sum_in_place(operation, flat, combination_of(op, size()))) {
    sum->reduce(1);
    sum->finish();
  } else if (SharedStage* const stage = stage_for(operation)) {
    stage->all_reduce(flat, combination_of(op, size()), {operation});
  } else {
    below().all_reduce(operation, flat, op);
  }
}

void SharedMemoryEngine::all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  if (SharedStage* const stage = stage_for(operation)) {
    stage->all_gather(output, input, {operation});
  } else {
    below().all_gather(operation, output, input);
  }
}

void SharedMemoryEngine::reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                                        ReduceOp op) {
  if (SharedStage* const stage = stage_for(operation)) {
    stage->reduce_scatter(output, input, combination_of(op, size()), {operation});
  } else {
    below().reduce_scatter(operation, output, input, op);
  }
}

void SharedMemoryEngine::all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  if (SharedStage* const stage = stage_for(operation)) {
    stage->all_to_all(output, input, {operation});
  } else {
    below().all_to_all(operation, output, input);
  }
}

void SharedMemoryEngine::broadcast(const Operation& operation, const at::Tensor& tensor, int root) {
  if (SharedStage* const stage = stage_for(operation)) {
    stage->broadcast(tensor, root, {operation});
  } else {
    below().broadcast(operation, tensor, root);
  }
}

void SharedMemoryEngine::exchange_parts(const Operation& operation, const std::vector<at::Tensor>& outputs,
                                        const std::vector<at::Tensor>& inputs, std::size_t longest) {
  if (SharedStage* const stage = stage_for(operation)) {
    stage->exchange_parts(outputs, inputs, longest, {operation});
  } else {
    below().exchange_parts(operation, outputs, inputs, longest);
  }
}

at::Tensor SharedMemoryEngine::allocate(const Operation& operation, std::int64_t bytes) {
  if (bytes == 0) return below().allocate(operation, bytes);
  std::string reason;
  auto allocation = std::make_shared<SharedAllocation>();
  allocation->memory = share_memory(*this, operation, static_cast<std::size_t>(bytes), reason);
  if (allocation->memory.empty()) {
    log_fallback(below(), "a gradient buffer of " + std::to_string(bytes) + " bytes", reason);
    below().connect();  // here, where all ranks are, and not when a sum starts
    return below().allocate(operation, bytes);
  }
  allocation->begin = allocation->memory.of(rank());
  allocation->bytes = static_cast<std::size_t>(bytes);
  const std::lock_guard lock(mutex_);
  allocation->number = ++allocated_;
  std::erase_if(allocations_, [](const auto& known) { return known.expired(); });
  allocations_.push_back(allocation);
  return at::from_blob(
      allocation->begin, {bytes}, [allocation](void*) {}, at::kByte);
}

std::vector<std::byte> SharedMemoryEngine::meet(const Operation& operation, std::span<const std::byte> mine) {
  return Engine::meet(operation, mine);  // by mailboxes
}

std::shared_ptr<Bulletin> SharedMemoryEngine::bulletin() {
  return make_shared_bulletin(node_);
}

std::shared_ptr<Engine> SharedMemoryEngine::connect_again(const std::vector<int>& members, const std::string& name,
                                                          std::chrono::milliseconds timeout) {
  return for_groups_(below().connect_again(members, name, timeout), name, timeout);
}

std::shared_ptr<Engine> SharedMemoryEngine::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  std::string reason;
  if (auto engine = share_again(name, timeout, reason)) return engine;
  const auto another = name + "/without";
  return for_groups_(below().duplicate(another, timeout), another, timeout);
}

std::shared_ptr<SharedMemoryEngine> SharedMemoryEngine::share_again(const std::string& name,
                                                                    std::chrono::milliseconds timeout,
                                                                    std::string& reason) {
  auto node = SharedNode::connect(*this, sharing_memory(timeout), reason);
  if (!node) return nullptr;
  return std::make_shared<SharedMemoryEngine>(below().duplicate(name, timeout), for_groups_, std::move(node));
}

void SharedMemoryEngine::close() noexcept {
  node_->close();
  below().close();
}

std::optional<SharedPlace> SharedMemoryEngine::place_of(const at::Tensor& flat) const {
  const auto* data = static_cast<const std::byte*>(flat.const_data_ptr());
  const std::lock_guard lock(mutex_);
  for (const auto& known : allocations_) {
    const auto allocation = known.lock();
    if (allocation && allocation->holds(data, flat.nbytes())) {
      return SharedPlace{allocation, static_cast<std::size_t>(data - allocation->begin)};
    }
  }
  return std::nullopt;
}

std::uint32_t SharedMemoryEngine::next_sum() {
  const std::lock_guard lock(mutex_);
  return ++sums_;
}

/// The combination of `flat` without a copy; null unless it stands at the same place of the same allocation on all
/// ranks.
std::unique_ptr<PendingSum> SharedMemoryEngine::sum_in_place(const Operation& operation, const at::Tensor& flat,
                                                             const Combination& combination) {
  struct Where {
    std::int64_t allocation = -1;
    std::int64_t offset = -1;
    bool operator==(const Where&) const = default;
  };
  if (flat.nbytes() < worth_looking_for) return nullptr;
  const auto place = place_of(flat);
  Where mine;
  if (place) mine = {place->allocation->number, static_cast<std::int64_t>(place->offset)};
  const auto exchange = start_exchange(operation, std::as_bytes(std::span(&mine, 1)));
  const auto all = exchange->finish();
  for (std::size_t begin = 0; begin < all.size(); begin += sizeof(Where)) {
    Where other;
    std::memcpy(&other, all.data() + begin, sizeof(other));
    if (!place || other != mine) return nullptr;
  }
  return std::make_unique<SharedSum>(node_, operation, *place, flat, next_sum(), combination);
}

/// Made with the first collective that needs it; null where it cannot be had.
SharedStage* SharedMemoryEngine::stage_for(const Operation& operation) {
  if (stage_ || no_stage_) return stage_.get();
  std::string reason = "too many ranks";
  SharedMemory memory;
  if (size() <= most_ranks) {
    memory = share_memory(*this, operation, SharedStage::slots * SharedStage::slot_bytes, reason);
  }
  no_stage_ = memory.empty();
  if (no_stage_) {
    log_fallback(below(), "collectives", reason);
  } else {
    stage_ = std::make_unique<SharedStage>(node_, std::move(memory));
  }
  return stage_.get();
}

std::shared_ptr<SharedMemoryEngine> make_shared_memory_engine(const std::shared_ptr<Engine>& messages,
                                                              ChooseEngine for_groups,
                                                              std::chrono::milliseconds timeout, std::string& reason) {
  const Operation operation = sharing_memory(timeout);
  auto node = SharedNode::connect(*messages, operation, reason);
  if (!node) return nullptr;
  auto engine = std::make_shared<SharedMemoryEngine>(messages, std::move(for_groups), std::move(node));
  // Whoever serves the store may leave only when all others have read it.
  const std::byte here{1};
  (void)engine->meet(operation, std::span(&here, 1));
  return engine;
}

}  // namespace tutti::comm
