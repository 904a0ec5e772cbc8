#pragma once
// Whether this process can use MPI: the module, and the launcher that started it.
#include <string>

#include "comm/transport/mpi/mpi_api.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// The module's functions; loaded once. Throws UsageError where there is no module, or one of another tutti.
const MpiApi& mpi_api();

/// Pure: why a job of `size` ranks cannot use MPI, by the variables of MPI's launchers; empty where it can. A process
/// that no such launcher started would be alone in an MPI of its own, or ended by it.
std::string mpi_unavailable_reason(const VariableLookup& lookup, int size);

/// Throws UsageError where a job of `size` ranks cannot use MPI. Starts nothing.
void require_mpi(int size);

/// Initialises MPI unless it is initialised, and returns the rank of this process. Every rank must call it. Throws
/// UsageError.
MpiWorld init_mpi();

}  // namespace tutti::comm
