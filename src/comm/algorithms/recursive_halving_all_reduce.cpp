#include "comm/algorithms/recursive_halving_all_reduce.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <utility>

#include "comm/algorithms/direct_all_reduce.h"

namespace tutti::comm {
namespace {

at::Tensor widened(const at::Tensor& flat) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  return flat.to(dtype_of_sums(flat.scalar_type()));
}

Phase phase_of(const RecursiveHalvingStep& step) {
  const bool result =
      step.kind == RecursiveHalvingStep::Kind::send_result || step.kind == RecursiveHalvingStep::Kind::receive_result;
  return result ? Phase::all_gather : Phase::reduce_scatter;
}

}  // namespace

RecursiveHalvingAllReduce::RecursiveHalvingAllReduce(std::shared_ptr<Transport> transport, BufferPool& buffer_pool,
                                                     Operation operation, const at::Tensor& flat, Reduction reduction)
    : transport_(std::move(transport)),
      operation_(std::move(operation)),
      reduction_(reduction),
      flat_(flat),
      wide_(widened(flat)),
      values_(buffer_of(wide_)),
      width_(wide_.element_size()),
      schedule_(recursive_halving_schedule(transport_->rank(), transport_->size())) {
  // All receives are posted before the first send. A result is received into memory that contributions are sent from.
  // That is safe: the peer sends the result only after it has received the contributions.
  for (const RecursiveHalvingStep& step : schedule_.reduce_scatter)
    reduce_scatter_.push_back(post_receives(step, buffer_pool));
  for (const RecursiveHalvingStep& step : schedule_.all_gather) all_gather_.push_back(post_receives(step, buffer_pool));
  for (; next_step_ < schedule_.reduce_scatter.size() && schedule_.reduce_scatter[next_step_].sends(); ++next_step_)
    send(schedule_.reduce_scatter[next_step_]);
}

std::vector<Range> RecursiveHalvingAllReduce::chunks_in(const ShardRange& shards) const {
  const auto elements = static_cast<std::size_t>(wide_.numel());
  const int all = num_shards(transport_->size());
  const Range first = shard_of(elements, width_, shards.first, all);
  const Range last = shard_of(elements, width_, shards.first + shards.count - 1, all);
  return chunks_of({first.offset, last.offset + last.length - first.offset}, width_);
}

RecursiveHalvingAllReduce::IncomingChunks RecursiveHalvingAllReduce::post_receives(const RecursiveHalvingStep& step,
                                                                                   BufferPool& buffer_pool) {
  if (step.sends() || step.peer < 0) return {};
  IncomingChunks incoming{.chunks = chunks_in(step.shards), .buffers = {}, .transfers = {}};
  if (incoming.chunks.empty()) return incoming;
  const bool result = step.kind == RecursiveHalvingStep::Kind::receive_result;
  const std::size_t begin = incoming.chunks.front().offset;
  const std::size_t end = incoming.chunks.back().offset + incoming.chunks.back().length;
  const Buffer memory = result ? Buffer{} : buffer_pool.acquire((end - begin) * width_);
  if (step.kind == RecursiveHalvingStep::Kind::receive_stash) stash_ = {.buffer = memory, .begin = begin};
  for (const Range& chunk : incoming.chunks) {
    const Buffer destination =
        result ? local(chunk) : memory.part((chunk.offset - begin) * width_, chunk.length * width_);
    incoming.buffers.push_back(destination);
    incoming.transfers.push_back(transport_->post_receive(step.peer, {operation_.number, phase_of(step)}, destination));
  }
  return incoming;
}

void RecursiveHalvingAllReduce::send(const RecursiveHalvingStep& step) {
  for (const Range& chunk : chunks_in(step.shards)) {
    const Buffer buffer = step.kind == RecursiveHalvingStep::Kind::send_stash ? stashed(chunk) : local(chunk);
    sends_.push_back(transport_->post_send(step.peer, {operation_.number, phase_of(step)}, buffer));
    bytes_sent_ += static_cast<std::int64_t>(buffer.size);
  }
}

void RecursiveHalvingAllReduce::receive(const RecursiveHalvingStep& step, IncomingChunks& incoming,
                                        const Reduction& reduction, Deadline deadline) {
  for (std::size_t i = 0; i < incoming.chunks.size(); ++i) {
    incoming.transfers[i]->wait(deadline);
    if (!step.adds()) continue;
    const Buffer own_chunk = local(incoming.chunks[i]);
    const Buffer& received = incoming.buffers[i];
    const bool adds_right = step.kind == RecursiveHalvingStep::Kind::receive_and_add_right;
    add(adds_right ? own_chunk : received, adds_right ? received : own_chunk, own_chunk, reduction);
  }
  if (step.adds()) incoming = {};
}

void RecursiveHalvingAllReduce::add_stash(const RecursiveHalvingStep& step, const Reduction& reduction) const {
  for (const Range& chunk : chunks_in(step.shards)) add(local(chunk), stashed(chunk), local(chunk), reduction);
}

void RecursiveHalvingAllReduce::add(const Buffer& left, const Buffer& right, const Buffer& result,
                                    const Reduction& reduction) const {
  const std::array<const std::byte*, 2> contributions{left.data, right.data};
  reduce_tree(contributions, result.data, result.size / width_, wide_.scalar_type(), reduction);
}

void RecursiveHalvingAllReduce::finish_reduce_scatter(double scale) {
  const auto deadline = operation_.deadline();
  reduction_.factor = scale;
  const auto& steps = schedule_.reduce_scatter;
  const auto last = std::ranges::find_if(steps.rbegin(), steps.rend(), &RecursiveHalvingStep::adds);
  for (; next_step_ < steps.size(); ++next_step_) {
    const RecursiveHalvingStep& step = steps[next_step_];
    const bool completes = schedule_.owner && &step == &*last;
    const Reduction reduction = completes ? reduction_ : Reduction{.op = reduction_.op};
    if (step.sends()) {
      send(step);
    } else if (step.kind == RecursiveHalvingStep::Kind::add_stash) {
      add_stash(step, reduction);
    } else {
      receive(step, reduce_scatter_[next_step_], reduction, deadline);
    }
  }
  for (next_step_ = 0; next_step_ < schedule_.all_gather.size() && schedule_.all_gather[next_step_].sends();
       ++next_step_) {
    send(schedule_.all_gather[next_step_]);
  }
}

void RecursiveHalvingAllReduce::wait() {
  const auto deadline = operation_.deadline();
  for (; next_step_ < schedule_.all_gather.size(); ++next_step_) {
    const RecursiveHalvingStep& step = schedule_.all_gather[next_step_];
    if (step.sends()) {
      send(step);
    } else {
      receive(step, all_gather_[next_step_], {}, deadline);
    }
  }
  wait_all(sends_, deadline);
  if (wide_.is_same(flat_)) return;
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  flat_.copy_(wide_);
}

}  // namespace tutti::comm
