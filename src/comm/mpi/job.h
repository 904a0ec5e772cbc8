#pragma once
// Whether this process can use MPI: the module, and the launcher that started it.
#include <string>

#include "comm/mpi/functions.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// The module's functions; loaded once. Throws UsageError where there is no module, or one of another tutti.
const MpiFunctions& mpi_functions();

/// Pure: why a job of `size` ranks cannot use MPI, by the variables of MPI's launchers; empty where it can. A process
/// that no such launcher started would be alone in an MPI of its own, or ended by it.
std::string why_no_mpi_job(const VariableLookup& lookup, int size);

/// Throws UsageError where a job of `size` ranks cannot use MPI. Starts nothing.
void require_mpi_job(int size);

/// The place of this process, after MPI was initialised if nobody has. Every rank must call it. Throws UsageError.
MpiPlace join_mpi();

}  // namespace tutti::comm
