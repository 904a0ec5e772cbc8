#pragma once
// The MPI column. It is a separate program, because MPI starts its own ranks.
#include "all_reduce/options.h"
#include "report/results.h"

namespace tutti::bench {

/// Measures every cell `repeats` times under mpirun. Without MPI, or if mpirun fails, returns no rows and a note with
/// the reason.
Results take_mpi(const AllReduceOptions& options, const Place& place, int repeats);

}  // namespace tutti::bench
