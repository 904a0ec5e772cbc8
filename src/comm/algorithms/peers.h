#pragma once
// Whom a rank talks to in every round. Pure.
#include <vector>

namespace tutti::comm {

/// The peers of `rank` in exchanges and sums among `size` ranks, in order: all others in small groups, in larger ones
/// those of exchange_rounds() and sum_moves(), whose number grows with log2(size). Whoever is a rank's neighbour has
/// it as one.
std::vector<int> peers_of(int rank, int size);

}  // namespace tutti::comm
