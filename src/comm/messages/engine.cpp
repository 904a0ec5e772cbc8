#include "comm/messages/engine.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "comm/messages/exchange.h"
#include "comm/messages/halving_sum.h"
#include "comm/messages/sum.h"
#include "comm/sums/combine.h"

namespace tutti::comm {
namespace {

// Many ranks gather less than this in rounds: it takes fewer messages, and connects a rank to its neighbours only.
constexpr std::size_t worth_a_message_to_each = std::size_t{1} << 20;

}  // namespace

MessageEngine::MessageEngine(std::shared_ptr<Transport> transport, NodeLayout layout)
    : transport_(std::move(transport)), layout_(std::move(layout)) {}

std::unique_ptr<PendingSum> MessageEngine::start_sum(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) {
  return sum_of(operation, flat, {}, codec);
}

// What is encoded goes from each rank to the owner at once: every rank's numbers are rounded once.
std::unique_ptr<PendingSum> MessageEngine::sum_of(const Operation& operation, const at::Tensor& flat,
                                                  const Combination& combination,
                                                  const std::shared_ptr<const WireCodec>& codec) {
  if (!codec && is_halving_faster(size(), flat.nbytes())) {
    return std::make_unique<HalvingSum>(transport_, scratch_, operation, flat, combination);
  }
  return std::make_unique<MessageSum>(transport_, scratch_, operation, flat, combination, codec);
}

std::unique_ptr<PendingExchange> MessageEngine::start_exchange(const Operation& operation,
                                                               std::span<const std::byte> mine) {
  if (size() > most_ranks_told_directly) return std::make_unique<ExchangeInRounds>(transport_, operation, mine);
  return std::make_unique<DirectExchange>(*transport_, operation, mine);
}

void MessageEngine::all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) {
  const auto sum = sum_of(operation, flat, combination_of(op, size()), nullptr);
  sum->reduce(1);
  sum->finish();
}

template <typename PartFor>
void MessageEngine::exchange_equal_parts(const Operation& operation, const Block& output, const PartFor& part_for) {
  const std::size_t part_size = output.size / static_cast<std::size_t>(size());
  if (part_size == 0) return;
  const Tag tag{operation.number, Phase::data};
  const auto output_part = [&](int peer) { return output.part(part_size * static_cast<std::size_t>(peer), part_size); };
  Transfers transfers;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    transfers.push_back(transport_->post_receive(peer, tag, output_part(peer)));
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    transfers.push_back(transport_->post_send(peer, tag, part_for(peer)));
  }
  std::memmove(output_part(rank()).data, part_for(rank()).data, part_size);
  wait_all(transfers, operation.deadline());
}

void MessageEngine::all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  const Block mine = block_of(input);
  if (size() > most_ranks_told_directly && output.nbytes() <= worth_a_message_to_each) {
    ExchangeInRounds rounds(transport_, operation, std::span(mine.data, mine.size));
    std::ranges::copy(rounds.finish(), block_of(output).data);
    return;
  }
  exchange_equal_parts(operation, block_of(output), [&](int) { return mine; });
}

void MessageEngine::all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  const Block all = block_of(input);
  const std::size_t part_size = all.size / static_cast<std::size_t>(size());
  exchange_equal_parts(operation, block_of(output),
                       [&](int peer) { return all.part(part_size * static_cast<std::size_t>(peer), part_size); });
}

void MessageEngine::exchange_parts(const Operation& operation, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& inputs, std::size_t) {
  const Tag tag{operation.number, Phase::data};
  const auto part_of = [](const std::vector<at::Tensor>& parts, int peer) {
    return block_of(parts[static_cast<std::size_t>(peer)]);
  };
  Transfers transfers;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    if (const Block part = part_of(outputs, peer); part.size > 0) {
      transfers.push_back(transport_->post_receive(peer, tag, part));
    }
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    if (const Block part = part_of(inputs, peer); part.size > 0) {
      transfers.push_back(transport_->post_send(peer, tag, part));
    }
  }
  const Block own = part_of(outputs, rank());
  if (own.size > 0) std::memmove(own.data, part_of(inputs, rank()).data, own.size);
  wait_all(transfers, operation.deadline());
}

void MessageEngine::reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                                   ReduceOp op) {
  const Block all = block_of(input);
  const Block result = block_of(output);
  const std::size_t width = output.element_size();
  const auto pieces = pieces_of({0, static_cast<std::size_t>(output.numel())}, width);
  const auto piece_for = [&](int peer, const Range& piece) {
    return all.part(result.size * static_cast<std::size_t>(peer) + piece.offset * width, piece.length * width);
  };
  std::vector<VersionCollector> collectors;
  for (const auto& piece : pieces) {
    collectors.emplace_back(*transport_, scratch_, operation, piece_for(rank(), piece));
  }
  Transfers sends;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    for (const auto& piece : pieces) {
      sends.push_back(transport_->post_send(peer, {operation.number, Phase::versions}, piece_for(peer, piece)));
    }
  }
  const auto deadline = operation.deadline();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto target = result.part(pieces[i].offset * width, pieces[i].length * width);
    collectors[i].combine_into(target, output.scalar_type(), combination_of(op, size()), deadline);
  }
  wait_all(sends, deadline);
}

// A binomial tree: in round k the ranks below 2^k (counted from the root) pass on to those 2^k further. Pieces let the
// levels of the tree work at the same time.
void MessageEngine::broadcast(const Operation& operation, const at::Tensor& tensor, int root) {
  const Block whole = block_of(tensor);
  const Tag tag{operation.number, Phase::data};
  const int place = (rank() - root + size()) % size();
  const auto rank_at = [&](int other) { return (other + root) % size(); };
  int below = 1;  // the smallest power of two above this place: the first round in which it passes on
  while (below <= place) below *= 2;
  std::vector<int> children;
  for (int step = below; place + step < size(); step *= 2) children.push_back(rank_at(place + step));

  const auto pieces = pieces_of({0, whole.size}, 1);
  Transfers receives;
  for (const auto& piece : pieces) {
    if (place == 0) break;
    receives.push_back(
        transport_->post_receive(rank_at(place - below / 2), tag, whole.part(piece.offset, piece.length)));
  }
  const auto deadline = operation.deadline();
  Transfers sends;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (place != 0) receives[i]->wait(deadline);
    for (int child : children) {
      sends.push_back(transport_->post_send(child, tag, whole.part(pieces[i].offset, pieces[i].length)));
    }
  }
  wait_all(sends, deadline);
}

std::vector<std::byte> MessageEngine::meet(const Operation& operation, std::span<const std::byte> mine) {
  if (auto all = transport_->meet(mine, operation.timeout)) return std::move(*all);
  return Engine::meet(operation, mine);
}

at::Tensor MessageEngine::allocate(const Operation&, std::int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

std::shared_ptr<Engine> MessageEngine::connect_again(const std::vector<int>& members, const std::string& name,
                                                     std::chrono::milliseconds timeout) {
  auto transport = transport_->connect_again(members, name, timeout);
  const int new_rank = transport->rank();
  return std::make_shared<MessageEngine>(std::move(transport), layout_of(layout_, members, new_rank));
}

}  // namespace tutti::comm
