#pragma once
// The device `sim`: see runtime.h.
#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
/// Tells LibTorch of it, once in a process.
void register_device();
}  // namespace tutti::test::simulated
