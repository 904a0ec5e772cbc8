#pragma once
// The schedule of an all-reduce by recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005). The number of
// steps grows with log2 of the number of ranks. Contributions are added along the tree of split_point(), so the result
// has the same bits as the direct all-reduce. No I/O.
//
// The tensor is cut into a power of two of equal shards, as many as the left subtree has ranks. In step k, ranks of the
// left subtree that differ in bit k exchange halves of the shards that they hold, from the lowest bit to the highest.
// At the end each rank holds one shard of its subtree's sum. The right subtree computes its sum in the same way and
// sends it to the left, which stashes it shard by shard and adds it last. Results are sent back along the same paths.
#include <cstddef>
#include <vector>

namespace tutti::comm {

/// Consecutive shards.
struct ShardRange {
  int first = 0;
  int count = 0;

  ShardRange lower_half() const { return {first, count / 2}; }
  ShardRange upper_half() const { return {first + count / 2, count / 2}; }
};

/// One step of one rank. The receives from a peer have the same order as the sends of that peer.
struct RecursiveHalvingStep {
  enum class Kind {
    send,                   ///< sends the partial sum
    receive_and_add_right,  ///< receives the sum of higher ranks and adds it as the right operand
    receive_and_add_left,   ///< receives the sum of lower ranks and adds it as the left operand
    receive_stash,          ///< receives the sum of the right subtree and stashes it
    send_stash,             ///< sends a part of the stashed sum
    add_stash,              ///< adds the stashed sum as the right operand; without a peer
    send_result,            ///< sends elements of the result
    receive_result,         ///< receives elements of the result
  };
  Kind kind;
  int peer = -1;
  ShardRange shards;

  bool sends() const { return kind == Kind::send || kind == Kind::send_stash || kind == Kind::send_result; }
  bool adds() const {
    return kind == Kind::receive_and_add_right || kind == Kind::receive_and_add_left || kind == Kind::add_stash;
  }
};

struct RecursiveHalvingSchedule {
  std::vector<RecursiveHalvingStep> reduce_scatter;  ///< afterwards each owner holds one shard of the result
  std::vector<RecursiveHalvingStep> all_gather;      ///< afterwards every rank holds the whole result
  bool owner = false;                                ///< true if this rank's last addition completes a shard
};

/// The number of shards that `size` ranks (2 or more) cut a tensor into.
int num_shards(int size);

/// The steps of `rank`.
RecursiveHalvingSchedule recursive_halving_schedule(int rank, int size);

/// True if an all-reduce of `bytes` over `size` ranks is estimated to take less time by recursive halving than by the
/// direct algorithm. Halving sends fewer messages but has more sequential steps, which do not overlap sending and
/// adding.
bool is_recursive_halving_faster(int size, std::size_t bytes);

}  // namespace tutti::comm
