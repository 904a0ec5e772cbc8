#include "comm/messages/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::comm {
namespace {

Block room_for(std::size_t bytes) {
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return {memory->data(), memory->size(), memory};
}

Tag tag_of(const Operation& operation) {
  return {operation.number, Phase::exchange};
}

}  // namespace

DirectExchange::DirectExchange(Transport& transport, Operation operation, std::span<const std::byte> mine)
    : operation_(std::move(operation)), blocks_(room_for(mine.size() * static_cast<std::size_t>(transport.size()))) {
  if (mine.empty()) return;
  const auto part_of = [&](int rank) {
    return blocks_.part(mine.size() * static_cast<std::size_t>(rank), mine.size());
  };
  const Block own = part_of(transport.rank());
  std::memcpy(own.data, mine.data(), mine.size());
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    transfers_.push_back(transport.post_receive(peer, tag_of(operation_), part_of(peer)));
  }
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank()) transfers_.push_back(transport.post_send(peer, tag_of(operation_), own));
  }
}

std::span<const std::byte> DirectExchange::finish() {
  wait_all(transfers_, operation_.deadline());
  return {blocks_.data, blocks_.size};
}

ExchangeInRounds::ExchangeInRounds(std::shared_ptr<Transport> transport, Operation operation,
                                   std::span<const std::byte> mine)
    : transport_(std::move(transport)),
      operation_(std::move(operation)),
      bytes_(mine.size()),
      blocks_(room_for(mine.size() * static_cast<std::size_t>(transport_->size()))) {
  if (mine.empty()) return;
  rounds_ = exchange_rounds(transport_->rank(), transport_->size());
  std::memcpy(blocks_.data, mine.data(), mine.size());
  for (const ExchangeRound& round : rounds_) {
    receives_.push_back(transport_->post_receive(round.from, tag_of(operation_), part(round.first, round.count)));
  }
  send(rounds_.front());
}

void ExchangeInRounds::send(const ExchangeRound& round) {
  sends_.push_back(transport_->post_send(round.to, tag_of(operation_), part(0, round.count)));
}

std::span<const std::byte> ExchangeInRounds::finish() {
  const auto deadline = operation_.deadline();
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    receives_[i]->wait(deadline);
    if (i + 1 < rounds_.size()) send(rounds_[i + 1]);
  }
  wait_all(sends_, deadline);
  const std::span all(blocks_.data, blocks_.size);
  const auto size = static_cast<std::size_t>(transport_->size());
  const auto first_rank = (size - static_cast<std::size_t>(transport_->rank())) % size;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first_rank * bytes_), all.end());
  return all;
}

}  // namespace tutti::comm
