#include "comm/algorithms/peers.h"

#include <set>

#include "comm/algorithms/bruck_schedule.h"
#include "comm/algorithms/recursive_halving_schedule.h"
#include "comm/algorithms/small_all_gather.h"

namespace tutti::comm {

std::vector<int> peers_of(int rank, int size) {
  std::set<int> peers;
  if (size <= max_direct_ranks) {
    for (int peer = 0; peer < size; ++peer) peers.insert(peer);
  } else {
    for (const BruckStep& step : bruck_schedule(rank, size)) peers.insert({step.to, step.from});
    const RecursiveHalvingSchedule schedule = recursive_halving_schedule(rank, size);
    for (const auto* part : {&schedule.reduce_scatter, &schedule.all_gather}) {
      for (const RecursiveHalvingStep& step : *part) peers.insert(step.peer);
    }
    peers.erase(-1);  // steps without a peer
  }
  peers.erase(rank);
  return {peers.begin(), peers.end()};
}

}  // namespace tutti::comm
