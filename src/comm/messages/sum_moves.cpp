#include "comm/messages/sum_moves.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "comm/messages/exchange.h"

namespace tutti::comm {
namespace {

int floor_power_of_two(int number) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(number)));
}

/// The ranks of one subtree: those on its left, a power of two, exchange halves with one another.
struct Side {
  int begin = 0;
  int left = 0;
  int right = 0;

  int right_begin() const { return begin + left; }
  /// How many ranks on the right own slices.
  int right_owners() const { return right == 0 ? 0 : floor_power_of_two(right); }
};

Side side_of(int begin, int size) {
  const int left = floor_power_of_two(size);
  return {.begin = begin, .left = left, .right = size - left};
}

/// The side on whose left `rank` is, and the one that this is the right of.
struct Seat {
  Side side;
  std::optional<Side> above;
  int place = 0;  ///< on the left
};

Seat seat_of(int rank, int size) {
  Seat seat{.side = side_of(0, size), .above = std::nullopt};
  while (rank >= seat.side.right_begin()) {
    seat.above = seat.side;
    seat.side = side_of(seat.side.right_begin(), seat.side.right);
  }
  seat.place = rank - seat.side.begin;
  return seat;
}

using Kind = SumMove::Kind;

class Planner {
 public:
  Planner(int rank, int size) : seat_(seat_of(rank, size)), mine_{0, slices_of_sum(size)} {}

  SumMoves plan() {
    moves_.owner = !seat_.above;
    halve();
    if (seat_.side.right > 0) add_right();
    // On the right of a tree: what is held goes to the left, and comes back as the result.
    if (seat_.above) {
      const int peer = seat_.above->begin + seat_.place;
      moves_.adding.push_back({Kind::send, peer, mine_});
      moves_.spreading.push_back({Kind::receive_result, peer, mine_});
    }
    double_again();
    return std::move(moves_);
  }

 private:
  int rank_of(int place) const { return seat_.side.begin + place; }
  bool is_upper(int bit) const { return (seat_.place & bit) != 0; }

  void halve() {
    for (int bit = 1; bit < seat_.side.left; bit *= 2) {
      const int peer = rank_of(seat_.place ^ bit);
      const SliceRun given = is_upper(bit) ? mine_.lower_half() : mine_.upper_half();
      mine_ = is_upper(bit) ? mine_.upper_half() : mine_.lower_half();
      moves_.adding.push_back({Kind::send, peer, given});
      moves_.adding.push_back({is_upper(bit) ? Kind::add_below : Kind::add_above, peer, mine_});
    }
  }

  // Each owner on the right hands its slices to the rank in its place on the left, and these pass them on along a
  // binomial tree to those that hold the same slices of the left's sum.
  void add_right() {
    const int owners = seat_.side.right_owners();
    const bool from_right = seat_.place < owners;
    const int top_bit = floor_power_of_two(std::max(seat_.place, 1));
    const int peer = from_right ? seat_.side.right_begin() + seat_.place : rank_of(seat_.place - top_bit);
    const int first_bit = from_right ? owners : 2 * top_bit;
    SliceRun aside = mine_;
    for (int bit = first_bit; bit < seat_.side.left; bit *= 2) aside.count *= 2;
    moves_.adding.push_back({Kind::lay_aside, peer, aside});
    for (int bit = first_bit; bit < seat_.side.left; bit *= 2) {
      moves_.adding.push_back({Kind::pass_aside, rank_of(seat_.place + bit), aside.upper_half()});
      aside = aside.lower_half();
    }
    moves_.adding.push_back({Kind::add_aside, -1, mine_});
  }

  // The steps of halve() backwards. On the way the right's owners get theirs, as soon as they can be had whole.
  void double_again() {
    const int owners = seat_.side.right_owners();
    for (int bit = seat_.side.left / 2; bit >= 1; bit /= 2) {
      if (2 * bit == owners) give_to_right();
      const int peer = rank_of(seat_.place ^ bit);
      const SliceRun other{is_upper(bit) ? mine_.first - mine_.count : mine_.first + mine_.count, mine_.count};
      moves_.spreading.push_back({Kind::send_result, peer, mine_});
      moves_.spreading.push_back({Kind::receive_result, peer, other});
      mine_ = {std::min(mine_.first, other.first), 2 * mine_.count};
    }
    if (owners == 1) give_to_right();
  }

  void give_to_right() {
    if (seat_.place >= seat_.side.right_owners()) return;
    moves_.spreading.push_back({Kind::send_result, seat_.side.right_begin() + seat_.place, mine_});
  }

  Seat seat_;
  SliceRun mine_;  // what this rank holds of its side's sum
  SumMoves moves_;
};

}  // namespace

int slices_of_sum(int size) {
  return floor_power_of_two(size);
}

SumMoves sum_moves(int rank, int size) {
  return Planner(rank, size).plan();
}

bool is_halving_faster(int size, std::size_t bytes) {
  constexpr int most_connections = 64;  // of a rank; beyond them every rank hears from few
  if (size <= most_ranks_told_directly) return false;
  if (size > most_connections) return true;
  // Of TCP on machines that share a switch, in microseconds.
  constexpr double message = 20;   // what posting and receiving one costs a rank
  constexpr double latency = 50;   // from the one's memory to the other's
  constexpr double byte = 0.0002;  // to add it up
  const double steps = 2.0 * std::bit_width(static_cast<unsigned>(size - 1));
  return steps * (message + latency) + byte * static_cast<double>(bytes) < 2.0 * (size - 1) * message;
}

}  // namespace tutti::comm
