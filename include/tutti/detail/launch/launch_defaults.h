#pragma once
// The defaults of `tutti launch`, and what torchrun's words mean in its options.
#include <string>

#include "tutti/core/environment.h"
#include "tutti/launch/launch.h"

namespace tutti {

/// What ranks of this node may use.
struct NodeDevices {
  int cores = 1;
  int gpus = 0;
};

NodeDevices node_devices(const VariableLookup& lookup);

/// The number of ranks that torchrun's `cpu` (one for each core), `gpu` or `auto` (gpu, or cpu without one) stands for;
/// other texts as they are. `setting`: for errors, where `text` stands. Throws UsageError for `gpu` without one.
std::string resolve_ranks(const std::string& setting, const std::string& text, const NodeDevices& devices);

/// N for torchrun's N:N; other texts as they are. Throws UsageError for a range.
std::string resolve_nodes(const std::string& setting, const std::string& text);

/// LaunchOptions from torchrun's PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT,
/// which Kubernetes' trainer sets in every pod. With several nodes and no PET_MASTER_ADDR, master_addr is empty. Throws
/// UsageError naming an invalid variable.
LaunchOptions launch_defaults(const VariableLookup& lookup);

}  // namespace tutti
