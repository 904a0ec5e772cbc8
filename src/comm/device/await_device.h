#pragma once
// A wait of a library thread for a device, with the deadline of an operation.
#include <c10/core/Device.h>

#include <functional>

#include "comm/backend/operation.h"
#include "device/side_stream.h"

namespace tutti::comm {

/// Blocks until `device` has reached `event`. Throws TransferError, which names the calling rank, if that takes longer
/// than the timeout of `operation`, and TransferError without ranks as soon as `is_cancelled` returns true.
void await_device(const devices::StreamEvent& event, c10::Device device, int rank, const Operation& operation,
                  const std::function<bool()>& is_cancelled);

}  // namespace tutti::comm
