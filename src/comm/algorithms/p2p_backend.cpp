#include "comm/algorithms/p2p_backend.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "comm/algorithms/direct_all_reduce.h"
#include "comm/algorithms/recursive_halving_all_reduce.h"
#include "comm/algorithms/small_all_gather.h"
#include "comm/backend/topology.h"

namespace tutti::comm {
namespace {

// The largest output that many ranks gather with Bruck's algorithm. It needs fewer messages, and connects a rank to
// few peers only.
constexpr std::size_t max_bruck_bytes = std::size_t{1} << 20;

// A message of Bruck's algorithm has the blocks of many ranks, so that payloads would cost more than they save.
BackendTraits traits_over(const Transport& transport) {
  const bool has_payloads = transport.size() <= max_direct_ranks;
  return {.name = transport.name(),
          .inline_payload_bytes = has_payloads ? padded_call_bytes : 0,
          .equal_lengths = has_payloads};
}

/// The parts of a tensor that holds one of equal size for each rank.
auto parts_of(const at::Tensor& tensor, int size) {
  return [whole = buffer_of(tensor), bytes = tensor.nbytes() / static_cast<std::size_t>(size)](int rank) {
    return whole.part(bytes * static_cast<std::size_t>(rank), bytes);
  };
}

}  // namespace

P2pBackend::P2pBackend(std::shared_ptr<Transport> transport, Topology topology)
    : Backend(traits_over(*transport), transport->rank(), std::move(topology)), transport_(std::move(transport)) {}

std::unique_ptr<PendingAllReduce> P2pBackend::start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                               const std::shared_ptr<const WireCodec>& codec) {
  return make_all_reduce(operation, flat, {}, codec);
}

// With a codec, each rank sends its contribution directly to the owner, so that each contribution is rounded once.
std::unique_ptr<PendingAllReduce> P2pBackend::make_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                              const Reduction& reduction,
                                                              const std::shared_ptr<const WireCodec>& codec) {
  if (!codec && is_recursive_halving_faster(size(), flat.nbytes())) {
    return std::make_unique<RecursiveHalvingAllReduce>(transport_, buffer_pool_, operation, flat, reduction);
  }
  return std::make_unique<DirectAllReduce>(transport_, buffer_pool_, operation, flat, reduction, codec);
}

std::unique_ptr<PendingAllGather> P2pBackend::start_small_all_gather(const Operation& operation,
                                                                     std::span<const std::byte> input) {
  if (size() > max_direct_ranks) return std::make_unique<BruckAllGather>(transport_, operation, input);
  return std::make_unique<DirectAllGather>(*transport_, operation, input);
}

void P2pBackend::all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) {
  const auto sum = make_all_reduce(operation, flat, make_reduction(op, size()), nullptr);
  sum->finish_reduce_scatter(1);
  sum->wait();
}

template <typename OutputFor, typename InputFor>
void P2pBackend::exchange_parts(const Operation& operation, const OutputFor& output_for, const InputFor& input_for) {
  const Tag tag{operation.number, Phase::data};
  Transfers transfers;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const Buffer part = output_for(peer);
    if (part.size > 0) transfers.push_back(transport_->post_receive(peer, tag, part));
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const Buffer part = input_for(peer);
    if (part.size > 0) transfers.push_back(transport_->post_send(peer, tag, part));
  }
  const Buffer own_part = output_for(rank());
  if (own_part.size > 0) std::memmove(own_part.data, input_for(rank()).data, own_part.size);
  wait_all(transfers, operation.deadline());
}

void P2pBackend::all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  const Buffer contribution = buffer_of(input);
  if (size() > max_direct_ranks && output.nbytes() <= max_bruck_bytes) {
    BruckAllGather gather(transport_, operation, std::span(contribution.data, contribution.size));
    std::ranges::copy(gather.wait(), buffer_of(output).data);
    return;
  }
  exchange_parts(operation, parts_of(output, size()), [&](int) { return contribution; });
}

void P2pBackend::all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs, std::size_t) {
  exchange_parts(
      operation, [&](int peer) { return buffer_of(outputs[static_cast<std::size_t>(peer)]); },
      [&](int peer) { return buffer_of(inputs[static_cast<std::size_t>(peer)]); });
}

void P2pBackend::reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                                ReduceOp op) {
  const Buffer all = buffer_of(input);
  const Buffer result = buffer_of(output);
  const std::size_t width = output.element_size();
  const auto chunks = chunks_of({0, static_cast<std::size_t>(output.numel())}, width);
  const auto chunk_for = [&](int peer, const Range& chunk) {
    return all.part(result.size * static_cast<std::size_t>(peer) + chunk.offset * width, chunk.length * width);
  };
  std::vector<ContributionReceiver> receivers;
  for (const auto& chunk : chunks) {
    receivers.emplace_back(*transport_, buffer_pool_, operation, chunk_for(rank(), chunk));
  }
  Transfers sends;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    for (const auto& chunk : chunks) {
      sends.push_back(transport_->post_send(peer, {operation.number, Phase::reduce_scatter}, chunk_for(peer, chunk)));
    }
  }
  const auto deadline = operation.deadline();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto target = result.part(chunks[i].offset * width, chunks[i].length * width);
    receivers[i].reduce_into(target, output.scalar_type(), make_reduction(op, size()), deadline);
  }
  wait_all(sends, deadline);
}

// A binomial tree: in step k each rank below 2^k (counted from the root) sends to the rank 2^k above it. The tensor is
// sent in chunks, so that the levels of the tree work at the same time.
void P2pBackend::broadcast(const Operation& operation, const at::Tensor& tensor, int root) {
  const Buffer buffer = buffer_of(tensor);
  const Tag tag{operation.number, Phase::data};
  const int relative_rank = (rank() - root + size()) % size();
  const auto rank_of = [&](int other) { return (other + root) % size(); };
  int first_stride = 1;  // the smallest power of two above relative_rank: the distance of the first send
  while (first_stride <= relative_rank) first_stride *= 2;
  std::vector<int> children;
  for (int step = first_stride; relative_rank + step < size(); step *= 2)
    children.push_back(rank_of(relative_rank + step));

  const auto chunks = chunks_of({0, buffer.size}, 1);
  Transfers receives;
  for (const auto& chunk : chunks) {
    if (relative_rank == 0) break;
    receives.push_back(transport_->post_receive(rank_of(relative_rank - first_stride / 2), tag,
                                                buffer.part(chunk.offset, chunk.length)));
  }
  const auto deadline = operation.deadline();
  Transfers sends;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (relative_rank != 0) receives[i]->wait(deadline);
    for (int child : children) {
      sends.push_back(transport_->post_send(child, tag, buffer.part(chunks[i].offset, chunks[i].length)));
    }
  }
  wait_all(sends, deadline);
}

std::vector<std::byte> P2pBackend::bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) {
  if (auto all = transport_->bootstrap_all_gather(input, operation.timeout)) return std::move(*all);
  return Backend::bootstrap_all_gather(operation, input);
}

at::Tensor P2pBackend::allocate(const Operation&, std::int64_t bytes, at::Device) {
  return at::empty({bytes}, at::kByte);
}

std::shared_ptr<Backend> P2pBackend::split(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) {
  auto transport = transport_->split(members, name, timeout);
  const int new_rank = transport->rank();
  return std::make_shared<P2pBackend>(std::move(transport), topology_of(topology(), members, new_rank));
}

}  // namespace tutti::comm
