#pragma once
// The state of LibTorch's default random generators of the CPU ("cpu") and of all devices of the accelerator
// ("cuda_0").
#include "tutti/state/state_dict.h"

namespace tutti {

StateDict random_state();
/// Throws CheckpointError and changes nothing if the state is invalid. Devices that only the state or only this machine
/// has are ignored.
void load_random_state(const StateDict& state);

}  // namespace tutti
