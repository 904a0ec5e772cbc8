#pragma once
// Who sends what to whom when every rank tells all others a few bytes. Pure.
#include <cstddef>
#include <vector>

namespace tutti::comm {

/// Blocks are counted from the rank's own: number i is that of rank (rank + i) % size.
struct BruckStep {
  int to = 0;    ///< who is sent blocks 0 to count - 1
  int from = 0;  ///< who sends blocks first to first + count - 1
  std::size_t first = 0;
  std::size_t count = 0;
};

/// All-gather by dissemination (Bruck, Ho, Kipnis, Upfal and Weathersby 1997): in round k a rank passes on all that it
/// knows, to the rank 2^k before it. A round needs what the rounds before it have brought. ceil(log2(size)) messages
/// each way instead of size - 1, and as many bytes.
std::vector<BruckStep> bruck_schedule(int rank, int size);

}  // namespace tutti::comm
