#include "comm/messages/neighbours.h"

#include <set>

#include "comm/messages/exchange.h"
#include "comm/messages/exchange_rounds.h"
#include "comm/messages/sum_moves.h"

namespace tutti::comm {

std::vector<int> neighbours_of(int rank, int size) {
  std::set<int> peers;
  if (size <= most_ranks_told_directly) {
    for (int peer = 0; peer < size; ++peer) peers.insert(peer);
  } else {
    for (const ExchangeRound& round : exchange_rounds(rank, size)) peers.insert({round.to, round.from});
    const SumMoves moves = sum_moves(rank, size);
    for (const auto* part : {&moves.adding, &moves.spreading}) {
      for (const SumMove& move : *part) peers.insert(move.peer);
    }
    peers.erase(-1);  // of moves without a peer
  }
  peers.erase(rank);
  return {peers.begin(), peers.end()};
}

}  // namespace tutti::comm
