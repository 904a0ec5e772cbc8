#include "comm/algorithms/small_all_gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::comm {
namespace {

Buffer make_buffer(std::size_t bytes) {
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return {memory->data(), memory->size(), memory};
}

Tag small_all_gather_tag(const Operation& operation) {
  return {operation.number, Phase::small_all_gather};
}

}  // namespace

DirectAllGather::DirectAllGather(Transport& transport, Operation operation, std::span<const std::byte> input)
    : operation_(std::move(operation)),
      output_(make_buffer(input.size() * static_cast<std::size_t>(transport.size()))) {
  if (input.empty()) return;
  const auto part_of = [&](int rank) {
    return output_.part(input.size() * static_cast<std::size_t>(rank), input.size());
  };
  const Buffer own_block = part_of(transport.rank());
  std::memcpy(own_block.data, input.data(), input.size());
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    transfers_.push_back(transport.post_receive(peer, small_all_gather_tag(operation_), part_of(peer)));
  }
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank())
      transfers_.push_back(transport.post_send(peer, small_all_gather_tag(operation_), own_block));
  }
}

std::span<const std::byte> DirectAllGather::wait() {
  wait_all(transfers_, operation_.deadline());
  return {output_.data, output_.size};
}

BruckAllGather::BruckAllGather(std::shared_ptr<Transport> transport, Operation operation,
                               std::span<const std::byte> input)
    : transport_(std::move(transport)),
      operation_(std::move(operation)),
      block_bytes_(input.size()),
      output_(make_buffer(input.size() * static_cast<std::size_t>(transport_->size()))) {
  if (input.empty()) return;
  steps_ = bruck_schedule(transport_->rank(), transport_->size());
  std::memcpy(output_.data, input.data(), input.size());
  for (const BruckStep& step : steps_) {
    receives_.push_back(
        transport_->post_receive(step.from, small_all_gather_tag(operation_), part(step.first, step.count)));
  }
  send(steps_.front());
}

void BruckAllGather::send(const BruckStep& step) {
  sends_.push_back(transport_->post_send(step.to, small_all_gather_tag(operation_), part(0, step.count)));
}

std::span<const std::byte> BruckAllGather::wait() {
  const auto deadline = operation_.deadline();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    receives_[i]->wait(deadline);
    if (i + 1 < steps_.size()) send(steps_[i + 1]);
  }
  wait_all(sends_, deadline);
  const std::span all(output_.data, output_.size);
  const auto size = static_cast<std::size_t>(transport_->size());
  const auto first_rank = (size - static_cast<std::size_t>(transport_->rank())) % size;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first_rank * block_bytes_), all.end());
  return all;
}

}  // namespace tutti::comm
