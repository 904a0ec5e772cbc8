#include "comm/shm/backend.h"

#include <ATen/ops/from_blob.h>

#include <span>
#include <utility>

#include "comm/reduction/reduce_tree.h"
#include "comm/shm/small_all_gather.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

/// A slot of the staging buffer is divided into one part per rank.
constexpr int max_ranks = 1024;

void log_fallback(const Backend& messages, const std::string& what, const std::string& reason) {
  if (messages.rank() != 0) return;
  Logger(0).warning(what + " is sent over " + messages.traits().name + ", not through shared memory: " + reason);
}

}  // namespace

Operation shm_setup_operation(std::chrono::milliseconds timeout) {
  return {.number = 0, .op_name = "shared memory setup", .name = "", .timeout = timeout};
}

ShmBackend::ShmBackend(const std::shared_ptr<Backend>& messages, SelectBackend for_groups,
                       std::shared_ptr<NodeState> node)
    : ForwardingBackend({.name = "shared memory + " + messages->traits().name,
                         .inline_payload_bytes = payload_slot_bytes,
                         .spin_count = node->spin_count()},
                        messages),
      for_groups_(std::move(for_groups)),
      node_(std::move(node)) {}

std::unique_ptr<PendingAllReduce> ShmBackend::start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                               const std::shared_ptr<const WireCodec>& codec) {
  const auto location = location_of(flat);
  if (!location || flat.numel() == 0) return inner().start_all_reduce(operation, flat, codec);
  return std::make_unique<InPlaceAllReduce>(node_, operation, *location, flat, next_all_reduce());
}

std::unique_ptr<PendingAllGather> ShmBackend::start_small_all_gather(const Operation& operation,
                                                                     std::span<const std::byte> input) {
  if (input.size() > payload_slot_bytes) return inner().start_small_all_gather(operation, input);
  const std::lock_guard lock(all_gather_mutex_);
  return std::make_unique<ShmAllGather>(node_, operation, input, ++all_gathers_);
}

void ShmBackend::all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) {
  if (auto* staged = staged_collectives(operation))
    return staged->all_reduce(flat, make_reduction(op, size()), {operation});
  inner().all_reduce(operation, flat, op);
}

void ShmBackend::all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  if (auto* staged = staged_collectives(operation)) return staged->all_gather(output, input, {operation});
  inner().all_gather(operation, output, input);
}

void ShmBackend::reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                                ReduceOp op) {
  if (auto* staged = staged_collectives(operation))
    return staged->reduce_scatter(output, input, make_reduction(op, size()), {operation});
  inner().reduce_scatter(operation, output, input, op);
}

void ShmBackend::broadcast(const Operation& operation, const at::Tensor& tensor, int root) {
  if (auto* staged = staged_collectives(operation)) return staged->broadcast(tensor, root, {operation});
  inner().broadcast(operation, tensor, root);
}

void ShmBackend::all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs, std::size_t longest) {
  if (auto* staged = staged_collectives(operation)) return staged->all_to_all_v(outputs, inputs, longest, {operation});
  inner().all_to_all_v(operation, outputs, inputs, longest);
}

at::Tensor ShmBackend::allocate(const Operation& operation, std::int64_t bytes, at::Device device) {
  if (bytes == 0) return inner().allocate(operation, bytes, device);
  std::string reason;
  auto allocation = std::make_shared<ShmAllocation>();
  allocation->memory = create_shared_memory(*this, operation, static_cast<std::size_t>(bytes), reason);
  if (allocation->memory.empty()) {
    log_fallback(inner(), "a gradient buffer of " + std::to_string(bytes) + " bytes", reason);
    return inner().allocate(operation, bytes, device);
  }
  allocation->begin = allocation->memory.of(rank());
  allocation->bytes = static_cast<std::size_t>(bytes);
  const std::lock_guard lock(mutex_);
  std::erase_if(allocations_, [](const auto& weak) { return weak.expired(); });
  allocations_.push_back(allocation);
  return at::from_blob(
      allocation->begin, {bytes}, [allocation](void*) {}, at::kByte);
}

std::vector<std::byte> ShmBackend::bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) {
  return Backend::bootstrap_all_gather(operation, input);  // through payload slots
}

std::shared_ptr<Backend> ShmBackend::split(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) {
  return for_groups_(inner().split(members, name, timeout), name, timeout);
}

std::shared_ptr<Backend> ShmBackend::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  std::string reason;
  if (auto backend = duplicate_shm(name, timeout, reason)) return backend;
  return for_groups_(inner().duplicate(name, timeout), name, timeout);
}

std::shared_ptr<ShmBackend> ShmBackend::duplicate_shm(const std::string& name, std::chrono::milliseconds timeout,
                                                      std::string& reason) {
  auto node = NodeState::connect(*this, shared_inner(), shm_setup_operation(timeout), reason);
  if (!node) return nullptr;
  return std::make_shared<ShmBackend>(inner().duplicate(name, timeout), for_groups_, std::move(node));
}

void ShmBackend::close() noexcept {
  node_->close();
  inner().close();
}

std::optional<ShmLocation> ShmBackend::location_of(const at::Tensor& flat) const {
  const auto* data = static_cast<const std::byte*>(flat.const_data_ptr());
  const std::lock_guard lock(mutex_);
  for (const auto& weak : allocations_) {
    const auto allocation = weak.lock();
    if (allocation && allocation->contains(data, flat.nbytes())) {
      return ShmLocation{allocation, static_cast<std::size_t>(data - allocation->begin)};
    }
  }
  return std::nullopt;
}

/// Created with the first collective that needs it; null if the ranks cannot share memory for it.
StagedCollectives* ShmBackend::staged_collectives(const Operation& operation) {
  if (staged_ || staging_unavailable_) return staged_.get();
  std::string reason = "the node has more than " + std::to_string(max_ranks) + " ranks";
  SharedMemory memory;
  if (size() <= max_ranks) {
    memory = create_shared_memory(*this, operation, StagedCollectives::slots * StagedCollectives::slot_bytes, reason);
  }
  staging_unavailable_ = memory.empty();
  if (staging_unavailable_) {
    log_fallback(inner(), "the data of collectives", reason);
  } else {
    staged_ = std::make_unique<StagedCollectives>(node_, std::move(memory));
  }
  return staged_.get();
}

std::shared_ptr<ShmBackend> make_shm_backend(const std::shared_ptr<Backend>& messages, SelectBackend for_groups,
                                             std::chrono::milliseconds timeout, std::string& reason) {
  auto node = NodeState::connect(*messages, messages, shm_setup_operation(timeout), reason);
  if (!node) return nullptr;
  return std::make_shared<ShmBackend>(messages, std::move(for_groups), std::move(node));
}

}  // namespace tutti::comm
