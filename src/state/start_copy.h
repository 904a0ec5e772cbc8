#pragma once
// Copies of a state to CPU memory that do not wait for the device.
#include <vector>

#include "device/side_stream.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// copy_to_cpu() without its wait. Tensors from accelerators hold their values when the events that the call appends to
/// `arrivals` have been reached. Later work of the program may change the originals at once.
StateDict start_copy_to_cpu(const StateDict& state, std::vector<devices::StreamEvent>& arrivals);

}  // namespace tutti
