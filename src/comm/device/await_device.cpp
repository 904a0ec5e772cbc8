#include "comm/device/await_device.h"

#include "core/describe.h"

namespace tutti::comm {

void await_device(const devices::StreamEvent& event, c10::Device device, int rank, const Operation& operation,
                  const std::function<bool()>& is_cancelled) {
  if (event.wait_until(operation.deadline(), is_cancelled)) return;
  if (is_cancelled()) throw TransferError(TransferError::Kind::connection_closed, {}, "the communicator was closed");
  throw TransferError(TransferError::Kind::timeout, {rank},
                      "device " + device.str() + " of rank " + std::to_string(rank) +
                          " did not complete the work queued before the call within " +
                          describe_duration(operation.timeout));
}

}  // namespace tutti::comm
