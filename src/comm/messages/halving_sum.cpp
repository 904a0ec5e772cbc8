#include "comm/messages/halving_sum.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <utility>

#include "comm/messages/sum.h"

namespace tutti::comm {
namespace {

at::Tensor widened(const at::Tensor& flat) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const bool narrow = flat.scalar_type() == at::kHalf || flat.scalar_type() == at::kBFloat16;
  return narrow ? flat.to(at::kFloat) : flat;
}

Phase phase_of(const SumMove& move) {
  const bool result = move.kind == SumMove::Kind::send_result || move.kind == SumMove::Kind::receive_result;
  return result ? Phase::results : Phase::versions;
}

}  // namespace

HalvingSum::HalvingSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation,
                       const at::Tensor& flat, Combination combination)
    : transport_(std::move(transport)),
      operation_(std::move(operation)),
      combination_(combination),
      flat_(flat),
      wide_(widened(flat)),
      values_(block_of(wide_)),
      width_(wide_.element_size()),
      moves_(sum_moves(transport_->rank(), transport_->size())) {
  // All receives are posted before anything is sent. A result lands in memory that versions are sent from: that is
  // safe, as it comes only after they have arrived.
  for (const SumMove& move : moves_.adding) adding_.push_back(expect(move, scratch));
  for (const SumMove& move : moves_.spreading) spreading_.push_back(expect(move, scratch));
  for (; made_ < moves_.adding.size() && moves_.adding[made_].sends(); ++made_) send(moves_.adding[made_]);
}

std::vector<Range> HalvingSum::pieces_in(const SliceRun& slices) const {
  const auto elements = static_cast<std::size_t>(wide_.numel());
  const int all = slices_of_sum(transport_->size());
  const Range first = slice_of(elements, width_, slices.first, all);
  const Range last = slice_of(elements, width_, slices.first + slices.count - 1, all);
  return pieces_of({first.offset, last.offset + last.length - first.offset}, width_);
}

HalvingSum::Arrival HalvingSum::expect(const SumMove& move, Scratch& scratch) {
  if (move.sends() || move.peer < 0) return {};
  Arrival arrival{.pieces = pieces_in(move.slices), .blocks = {}, .transfers = {}};
  if (arrival.pieces.empty()) return arrival;
  const bool result = move.kind == SumMove::Kind::receive_result;
  const std::size_t begin = arrival.pieces.front().offset;
  const std::size_t end = arrival.pieces.back().offset + arrival.pieces.back().length;
  const Block room = result ? Block{} : scratch.take((end - begin) * width_);
  if (move.kind == SumMove::Kind::lay_aside) aside_ = {.block = room, .begin = begin};
  for (const Range& piece : arrival.pieces) {
    const Block where = result ? own(piece) : room.part((piece.offset - begin) * width_, piece.length * width_);
    arrival.blocks.push_back(where);
    arrival.transfers.push_back(transport_->post_receive(move.peer, {operation_.number, phase_of(move)}, where));
  }
  return arrival;
}

void HalvingSum::send(const SumMove& move) {
  for (const Range& piece : pieces_in(move.slices)) {
    const Block block = move.kind == SumMove::Kind::pass_aside ? aside(piece) : own(piece);
    outgoing_.push_back(transport_->post_send(move.peer, {operation_.number, phase_of(move)}, block));
    bytes_sent_ += static_cast<std::int64_t>(block.size);
  }
}

void HalvingSum::receive(const SumMove& move, Arrival& arrival, const Combination& combination, Deadline deadline) {
  for (std::size_t i = 0; i < arrival.pieces.size(); ++i) {
    arrival.transfers[i]->wait(deadline);
    if (!move.adds()) continue;
    const Block mine = own(arrival.pieces[i]);
    const Block& other = arrival.blocks[i];
    const bool above = move.kind == SumMove::Kind::add_above;
    add(above ? mine : other, above ? other : mine, mine, combination);
  }
  if (move.adds()) arrival = {};
}

void HalvingSum::add_aside(const SumMove& move, const Combination& combination) const {
  for (const Range& piece : pieces_in(move.slices)) add(own(piece), aside(piece), own(piece), combination);
}

void HalvingSum::add(const Block& left, const Block& right, const Block& result, const Combination& combination) const {
  const std::array<const std::byte*, 2> versions{left.data, right.data};
  combine(versions, result.data, result.size / width_, wide_.scalar_type(), combination);
}

void HalvingSum::reduce(double scale) {
  const auto deadline = operation_.deadline();
  combination_.rescale.factor = scale;
  const auto& moves = moves_.adding;
  const auto last = std::ranges::find_if(moves.rbegin(), moves.rend(), &SumMove::adds);
  for (; made_ < moves.size(); ++made_) {
    const SumMove& move = moves[made_];
    const bool completes = moves_.owner && &move == &*last;
    const Combination combination = completes ? combination_ : Combination{.op = combination_.op};
    if (move.sends()) {
      send(move);
    } else if (move.kind == SumMove::Kind::add_aside) {
      add_aside(move, combination);
    } else {
      receive(move, adding_[made_], combination, deadline);
    }
  }
  for (made_ = 0; made_ < moves_.spreading.size() && moves_.spreading[made_].sends(); ++made_) {
    send(moves_.spreading[made_]);
  }
}

void HalvingSum::finish() {
  const auto deadline = operation_.deadline();
  for (; made_ < moves_.spreading.size(); ++made_) {
    const SumMove& move = moves_.spreading[made_];
    if (move.sends()) {
      send(move);
    } else {
      receive(move, spreading_[made_], {}, deadline);
    }
  }
  wait_all(outgoing_, deadline);
  if (wide_.is_same(flat_)) return;
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  flat_.copy_(wide_);
}

}  // namespace tutti::comm
