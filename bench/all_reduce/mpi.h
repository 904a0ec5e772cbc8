#pragma once
// The MPI column: a program of its own, because an MPI starts its ranks itself.
#include "all_reduce/options.h"
#include "all_reduce/results.h"

namespace tutti::bench {

/// Takes `repeats` figures of every cell under mpirun. Where there is no MPI, or it fails, there are no rows and a note
/// that says why.
AllReduceResults take_mpi(const AllReduceOptions& options, int ranks, int repeats);

}  // namespace tutti::bench
