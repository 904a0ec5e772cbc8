#pragma once
// LibTorch's default random generators as state: that of the CPU and those of all CUDA devices.
#include "tutti/state/state_dict.h"

namespace tutti {

StateDict random_state();
/// Throws CheckpointError, and changes nothing, for a state that is none. Devices that only one side has are left out.
void load_random_state(const StateDict& state);

}  // namespace tutti
