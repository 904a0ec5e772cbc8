#include "comm/algorithms/direct_all_reduce.h"

#include <utility>

namespace tutti::comm {
namespace {

std::span<float> as_floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data), buffer.size / sizeof(float)};
}

std::span<std::byte> as_bytes(const Buffer& buffer) {
  return {buffer.data, buffer.size};
}

/// A buffer for the encoded form of `values`.
Buffer acquire_wire_buffer(BufferPool& buffer_pool, const Buffer& values, const WireCodec& codec) {
  return buffer_pool.acquire(codec.encoded_bytes(values.size / sizeof(float)));
}

}  // namespace

Buffer buffer_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(), std::make_shared<at::Tensor>(tensor)};
}

ContributionReceiver::ContributionReceiver(Transport& transport, BufferPool& buffer_pool, const Operation& operation,
                                           const Buffer& own_chunk, OptionalCodec codec)
    : buffer_pool_(&buffer_pool),
      rank_(transport.rank()),
      codec_(std::move(codec)),
      contributions_(static_cast<std::size_t>(transport.size())) {
  for (int peer = 0; peer < transport.size(); ++peer) {
    auto& contribution = contributions_[static_cast<std::size_t>(peer)];
    contribution = peer == rank_ ? own_chunk
                   : codec_      ? acquire_wire_buffer(buffer_pool, own_chunk, *codec_)
                                 : buffer_pool.acquire(own_chunk.size);
    if (peer == rank_) continue;
    receives_.push_back(transport.post_receive(peer, {operation.number, Phase::reduce_scatter}, contribution));
  }
}

void ContributionReceiver::reduce_into(const Buffer& result, at::ScalarType dtype, const Reduction& reduction,
                                       Deadline deadline) {
  wait_all(receives_, deadline);
  std::vector<const std::byte*> memory;
  for (std::size_t peer = 0; peer < contributions_.size(); ++peer) {
    Buffer& contribution = contributions_[peer];
    if (codec_ && static_cast<int>(peer) != rank_) {
      const Buffer decoded = buffer_pool_->acquire(result.size);
      codec_->decode(as_bytes(contribution), as_floats(decoded));
      contribution = decoded;
    }
    memory.push_back(contribution.data);
  }
  reduce_tree(memory, result.data, result.size / c10::elementSize(dtype), dtype, reduction);
  contributions_.clear();
}

DirectAllReduce::DirectAllReduce(std::shared_ptr<Transport> transport, BufferPool& buffer_pool, Operation operation,
                                 const at::Tensor& flat, Reduction reduction, OptionalCodec codec)
    : transport_(std::move(transport)),
      buffer_pool_(buffer_pool),
      operation_(std::move(operation)),
      reduction_(reduction),
      codec_(std::move(codec)),
      dtype_(flat.scalar_type()) {
  const Buffer whole = buffer_of(flat);
  const std::size_t width = flat.element_size();
  const int rank = transport_->rank();
  const int size = transport_->size();
  for (Chunk& chunk : chunks_of_rank(whole, width, rank)) {
    ContributionReceiver contributions(*transport_, buffer_pool_, operation_, chunk.values, codec_);
    owned_chunks_.push_back({std::move(chunk), std::move(contributions)});
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    for (Chunk& chunk : chunks_of_rank(whole, width, peer)) {
      auto result = transport_->post_receive(peer, {operation_.number, Phase::all_gather}, chunk.wire);
      remote_chunks_.push_back({std::move(chunk), std::move(result)});
    }
  }
  // Without a codec a result is received into the memory that the contribution is sent from. That is safe: the owner
  // sends the result only after it has received the contribution. With a codec the two use different memory.
  for (const RemoteChunk& remote : remote_chunks_) {
    Buffer contribution = remote.chunk.values;
    if (codec_) {
      contribution = acquire_wire_buffer(buffer_pool_, remote.chunk.values, *codec_);
      codec_->encode(as_floats(remote.chunk.values), as_bytes(contribution));
    }
    send(remote.result->peer(), Phase::reduce_scatter, contribution);
  }
}

std::vector<DirectAllReduce::Chunk> DirectAllReduce::chunks_of_rank(const Buffer& whole, std::size_t width, int owner) {
  std::vector<Chunk> chunks;
  for (const Range& range : chunks_of(shard_of(whole.size / width, width, owner, transport_->size()), width)) {
    const Buffer values = whole.part(range.offset * width, range.length * width);
    chunks.push_back({values, codec_ ? acquire_wire_buffer(buffer_pool_, values, *codec_) : values});
  }
  return chunks;
}

void DirectAllReduce::send(int peer, Phase phase, const Buffer& buffer) {
  sends_.push_back(transport_->post_send(peer, {operation_.number, phase}, buffer));
  bytes_sent_ += static_cast<std::int64_t>(buffer.size);
}

void DirectAllReduce::finish_reduce_scatter(double scale) {
  reduction_.factor = scale;
  const auto deadline = operation_.deadline();
  for (OwnedChunk& owned : owned_chunks_) {
    const Chunk& chunk = owned.chunk;
    owned.contributions.reduce_into(chunk.values, dtype_, reduction_, deadline);
    if (codec_) codec_->encode(as_floats(chunk.values), as_bytes(chunk.wire));
    for (int step = 1; step < transport_->size(); ++step) {
      send((transport_->rank() + step) % transport_->size(), Phase::all_gather, chunk.wire);
    }
    if (codec_) codec_->decode(as_bytes(chunk.wire), as_floats(chunk.values));
  }
  owned_chunks_.clear();
}

void DirectAllReduce::wait() {
  const auto deadline = operation_.deadline();
  Transfers results;
  for (RemoteChunk& remote : remote_chunks_) results.push_back(std::move(remote.result));
  wait_all(results, deadline);
  for (const RemoteChunk& remote : remote_chunks_) {
    if (codec_) codec_->decode(as_bytes(remote.chunk.wire), as_floats(remote.chunk.values));
  }
  wait_all(sends_, deadline);
}

}  // namespace tutti::comm
