#pragma once
// The defaults of `tutti launch`.
#include "tutti/core/environment.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// LaunchOptions from torchrun's PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT,
/// which Kubernetes' trainer sets in every pod. "auto" and "cpu" mean one rank for each core that this process may use.
/// With several nodes and no PET_MASTER_ADDR, master_addr is empty. Throws UsageError naming an invalid variable.
LaunchOptions launch_defaults(const VariableLookup& lookup);

}  // namespace tutti
