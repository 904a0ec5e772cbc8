#pragma once
// Who sends which part of a sum to whom, where many ranks add up in a number of steps that grows with log2 of their
// number: recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005), along the tree of split_point(), so
// that the result has the bits of one that each owner adds up at once. Pure.
//
// The elements are cut into a power of two of equal slices, as many as the left side of the tree has ranks. Neighbours
// begin: in step k ranks that differ in bit k exchange halves of what they hold, until each holds one slice of the sum
// of its side. The sum of the ranks on the right, made in the same way, is laid aside on the left, slice by slice, and
// added last. Results go back the way that the versions came.
#include <cstddef>
#include <vector>

namespace tutti::comm {

/// Neighbouring slices.
struct ShardRange {
  int first = 0;
  int count = 0;

  ShardRange lower_half() const { return {first, count / 2}; }
  ShardRange upper_half() const { return {first + count / 2, count / 2}; }
};

/// What one rank does next. Receives of one peer come in the order in which it sends.
struct RecursiveHalvingStep {
  enum class Kind {
    send,                   ///< what is added up so far
    receive_and_add_right,  ///< receives the sum of later ranks and adds it on the right
    receive_and_add_left,   ///< receives the sum of earlier ranks and adds it on the left
    receive_stash,          ///< receives a sum of the ranks on the right
    send_stash,             ///< sends a part of what was laid aside
    add_stash,              ///< adds what was laid aside, on the right; without a peer
    send_result,            ///< sends elements of the whole sum
    receive_result,         ///< receives elements of the whole sum
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
  std::vector<RecursiveHalvingStep> reduce_scatter;  ///< afterwards the owners hold the whole sum, a slice each
  std::vector<RecursiveHalvingStep> all_gather;      ///< afterwards every rank holds all of it
  bool owner = false;                                ///< whether this rank's last addition completes a slice
};

/// How many slices `size` ranks (2 or more) cut a sum into.
int num_shards(int size);

RecursiveHalvingSchedule recursive_halving_schedule(int rank, int size);

/// Whether a sum of `bytes` over `size` ranks takes less time by halving than where every owner hears from every rank
/// at once: fewer messages against more steps one after the other, in which nothing is added while bytes travel.
bool is_recursive_halving_faster(int size, std::size_t bytes);

}  // namespace tutti::comm
