#pragma once
// Who sends which part of a sum to whom, where many ranks add up in a number of steps that grows with log2 of their
// number: recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005), along the tree of left_of_tree(), so
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
struct SliceRun {
  int first = 0;
  int count = 0;

  SliceRun lower_half() const { return {first, count / 2}; }
  SliceRun upper_half() const { return {first + count / 2, count / 2}; }
};

/// What one rank does next. Receives of one peer come in the order in which it sends.
struct SumMove {
  enum class Kind {
    send,            ///< what is added up so far
    add_above,       ///< receives the sum of later ranks and adds it on the right
    add_below,       ///< receives the sum of earlier ranks and adds it on the left
    lay_aside,       ///< receives a sum of the ranks on the right
    pass_aside,      ///< sends a part of what was laid aside
    add_aside,       ///< adds what was laid aside, on the right; without a peer
    send_result,     ///< sends elements of the whole sum
    receive_result,  ///< receives elements of the whole sum
  };
  Kind kind;
  int peer = -1;
  SliceRun slices;

  bool sends() const { return kind == Kind::send || kind == Kind::pass_aside || kind == Kind::send_result; }
  bool adds() const { return kind == Kind::add_above || kind == Kind::add_below || kind == Kind::add_aside; }
};

struct SumMoves {
  std::vector<SumMove> adding;     ///< afterwards the owners hold the whole sum, a slice each
  std::vector<SumMove> spreading;  ///< afterwards every rank holds all of it
  bool owner = false;              ///< whether this rank's last addition completes a slice
};

/// How many slices `size` ranks (2 or more) cut a sum into.
int slices_of_sum(int size);

SumMoves sum_moves(int rank, int size);

/// Whether a sum of `bytes` over `size` ranks takes less time by halving than where every owner hears from every rank
/// at once: fewer messages against more steps one after the other, in which nothing is added while bytes travel.
bool is_halving_faster(int size, std::size_t bytes);

}  // namespace tutti::comm
