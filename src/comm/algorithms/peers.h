#pragma once
// The peers that a rank exchanges messages with in its collectives. No I/O.
#include <vector>

namespace tutti::comm {

/// The peers of `rank` in small all-gathers and all-reduces among `size` ranks, in ascending order. In groups of up to
/// max_direct_ranks these are all other ranks. In larger groups they are the peers of bruck_schedule() and
/// recursive_halving_schedule(), whose number grows with log2(size). The relation is symmetric.
std::vector<int> peers_of(int rank, int size);

}  // namespace tutti::comm
