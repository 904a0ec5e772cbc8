#include "comm/algorithms/recursive_halving_schedule.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "comm/algorithms/small_all_gather.h"

namespace tutti::comm {
namespace {

int floor_power_of_two(int number) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(number)));
}

/// The ranks of one subtree. The left ranks, a power of two of them, exchange halves with one another.
struct Subtree {
  int begin = 0;
  int left = 0;
  int right = 0;

  int right_begin() const { return begin + left; }
  /// The number of right ranks that own shards.
  int right_owners() const { return right == 0 ? 0 : floor_power_of_two(right); }
};

Subtree subtree_at(int begin, int size) {
  const int left = floor_power_of_two(size);
  return {.begin = begin, .left = left, .right = size - left};
}

/// The subtree on whose left `rank` is, and the subtree whose right side that is.
struct Position {
  Subtree subtree;
  std::optional<Subtree> parent;
  int index = 0;  ///< of the rank, on the left of `subtree`
};

Position position_of(int rank, int size) {
  Position position{.subtree = subtree_at(0, size), .parent = std::nullopt};
  while (rank >= position.subtree.right_begin()) {
    position.parent = position.subtree;
    position.subtree = subtree_at(position.subtree.right_begin(), position.subtree.right);
  }
  position.index = rank - position.subtree.begin;
  return position;
}

using Kind = RecursiveHalvingStep::Kind;

class ScheduleBuilder {
 public:
  ScheduleBuilder(int rank, int size) : position_(position_of(rank, size)), held_{0, num_shards(size)} {}

  RecursiveHalvingSchedule build() {
    schedule_.owner = !position_.parent;
    add_halving_steps();
    if (position_.subtree.right > 0) add_right_subtree();
    // A rank on the right sends its sum to the left and receives the result from there.
    if (position_.parent) {
      const int peer = position_.parent->begin + position_.index;
      schedule_.reduce_scatter.push_back({Kind::send, peer, held_});
      schedule_.all_gather.push_back({Kind::receive_result, peer, held_});
    }
    add_doubling_steps();
    return std::move(schedule_);
  }

 private:
  int rank_of(int index) const { return position_.subtree.begin + index; }
  bool is_upper(int bit) const { return (position_.index & bit) != 0; }

  void add_halving_steps() {
    for (int bit = 1; bit < position_.subtree.left; bit *= 2) {
      const int peer = rank_of(position_.index ^ bit);
      const ShardRange sent = is_upper(bit) ? held_.lower_half() : held_.upper_half();
      held_ = is_upper(bit) ? held_.upper_half() : held_.lower_half();
      schedule_.reduce_scatter.push_back({Kind::send, peer, sent});
      schedule_.reduce_scatter.push_back(
          {is_upper(bit) ? Kind::receive_and_add_left : Kind::receive_and_add_right, peer, held_});
    }
  }

  // Each owner on the right sends its shards to the rank with the same index on the left. The left ranks forward them
  // along a binomial tree to the ranks that hold the same shards of the left sum.
  void add_right_subtree() {
    const int owners = position_.subtree.right_owners();
    const bool from_right = position_.index < owners;
    const int top_bit = floor_power_of_two(std::max(position_.index, 1));
    const int peer =
        from_right ? position_.subtree.right_begin() + position_.index : rank_of(position_.index - top_bit);
    const int first_bit = from_right ? owners : 2 * top_bit;
    ShardRange stashed = held_;
    for (int bit = first_bit; bit < position_.subtree.left; bit *= 2) stashed.count *= 2;
    schedule_.reduce_scatter.push_back({Kind::receive_stash, peer, stashed});
    for (int bit = first_bit; bit < position_.subtree.left; bit *= 2) {
      schedule_.reduce_scatter.push_back({Kind::send_stash, rank_of(position_.index + bit), stashed.upper_half()});
      stashed = stashed.lower_half();
    }
    schedule_.reduce_scatter.push_back({Kind::add_stash, -1, held_});
  }

  // The steps of add_halving_steps() in reverse. Each owner on the right is sent its shards as soon as this rank holds
  // all of them.
  void add_doubling_steps() {
    const int owners = position_.subtree.right_owners();
    for (int bit = position_.subtree.left / 2; bit >= 1; bit /= 2) {
      if (2 * bit == owners) send_to_right_subtree();
      const int peer = rank_of(position_.index ^ bit);
      const ShardRange peer_shards{is_upper(bit) ? held_.first - held_.count : held_.first + held_.count, held_.count};
      schedule_.all_gather.push_back({Kind::send_result, peer, held_});
      schedule_.all_gather.push_back({Kind::receive_result, peer, peer_shards});
      held_ = {std::min(held_.first, peer_shards.first), 2 * held_.count};
    }
    if (owners == 1) send_to_right_subtree();
  }

  void send_to_right_subtree() {
    if (position_.index >= position_.subtree.right_owners()) return;
    schedule_.all_gather.push_back({Kind::send_result, position_.subtree.right_begin() + position_.index, held_});
  }

  Position position_;
  ShardRange held_;  // the shards of the subtree's sum that this rank holds
  RecursiveHalvingSchedule schedule_;
};

}  // namespace

int num_shards(int size) {
  return floor_power_of_two(size);
}

RecursiveHalvingSchedule recursive_halving_schedule(int rank, int size) {
  return ScheduleBuilder(rank, size).build();
}

bool is_recursive_halving_faster(int size, std::size_t bytes) {
  constexpr int max_connections = 64;  // of a rank; in larger groups a rank connects to few peers only
  if (size <= max_direct_ranks) return false;
  if (size > max_connections) return true;
  // Costs of TCP between machines on one switch, in microseconds.
  constexpr double message_us = 20;   // a rank's time to post and receive one message
  constexpr double latency_us = 50;   // from the sender's memory to the receiver's memory
  constexpr double byte_us = 0.0002;  // to add one byte
  const double steps = 2.0 * std::bit_width(static_cast<unsigned>(size - 1));
  return steps * (message_us + latency_us) + byte_us * static_cast<double>(bytes) < 2.0 * (size - 1) * message_us;
}

}  // namespace tutti::comm
