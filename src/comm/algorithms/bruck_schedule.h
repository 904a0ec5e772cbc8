#pragma once
// The schedule of Bruck's all-gather, for small blocks. No I/O.
#include <cstddef>
#include <vector>

namespace tutti::comm {

/// One step of one rank. Block i is the contribution of rank (rank + i) % size: block 0 is the rank's own.
struct BruckStep {
  int to = 0;    ///< the rank to send blocks 0 to count - 1 to
  int from = 0;  ///< the rank to receive blocks first to first + count - 1 from
  std::size_t first = 0;
  std::size_t count = 0;
};

/// The steps of `rank` in an all-gather by dissemination (Bruck, Ho, Kipnis, Upfal and Weathersby 1997). In step k a
/// rank sends all blocks that it holds to the rank 2^k before it. A step sends blocks that earlier steps received. A
/// rank sends and receives ceil(log2(size)) messages instead of size - 1, with the same number of bytes.
std::vector<BruckStep> bruck_schedule(int rank, int size);

}  // namespace tutti::comm
