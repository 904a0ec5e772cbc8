#pragma once
// What `tutti launch` starts from where its command line says nothing.
#include "tutti/core/environment.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// LaunchOptions with what torchrun's PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and
/// PET_MASTER_PORT say, which Kubernetes' trainer sets in every pod. "auto" and "cpu" ranks are one for each core that
/// this process may use. With several nodes and no PET_MASTER_ADDR, master_addr is empty. Throws UsageError naming the
/// variable that cannot be honoured.
LaunchOptions launch_defaults(const VariableLookup& lookup);

}  // namespace tutti
