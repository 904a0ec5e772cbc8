#pragma once
// One c10d backend on one device, with its streams and its watchdog.
//
// All collectives are launched on the queue thread of one communicator, in the order of its operations, which is equal
// on all ranks: c10d backends on devices need that order, and are not thread safe.
//
// The end: the destructor waits until the device has completed all work, at most until the work's timeouts, and shuts
// the c10d backend down. c10d's own destructors abort work in flight, so the sum of the last step would be lost. Only
// after a failure is the backend aborted.
#include <ATen/core/TensorBody.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <vector>

#include "comm/backend/describe.h"
#include "comm/backend/operation.h"
#include "comm/backend/peer_health.h"
#include "comm/device/watchdog.h"
#include "device/side_stream.h"

namespace tutti::comm {

/// Runs `call` and rethrows exceptions of c10d as TransferError. They name no ranks: the communicator finds these.
template <typename Call>
auto rethrow_as_transfer_error(const Call& call) {
  try {
    return call();
  } catch (const TransferError&) {
    throw;
  } catch (const std::exception& error) {
    throw TransferError(TransferError::Kind::connection_closed, {}, first_line(error.what()));
  }
}

class DeviceGroup {
 public:
  using EventPtr = std::shared_ptr<const devices::StreamEvent>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  /// Starts a collective of the c10d backend.
  using Launch = std::function<WorkPtr(c10d::Backend&)>;

  DeviceGroup(c10::intrusive_ptr<c10d::Backend> c10d_backend, at::Device device,
              std::shared_ptr<const PeerHealth> peers);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  at::Device device() const { return device_; }
  int size() const { return c10d_backend_->getSize(); }
  /// Launches a collective in the order of the calling thread's current stream. `memory` holds its tensors, which stay
  /// valid until the device has completed it.
  void run_on_current_stream(const Operation& operation, std::vector<at::Tensor> memory, const Launch& launch);
  /// Launches a collective on `memory` after `inputs_ready`, and then `finish` on a stream of this object. Returns the
  /// event after both.
  EventPtr run_after(const EventPtr& inputs_ready, const Operation& operation, const at::Tensor& memory,
                     const Launch& launch, const std::function<void()>& finish);
  /// Throws TransferError if a collective has failed on the device.
  void throw_if_failed() const { watchdog_.throw_if_failed(); }
  /// Ends the collectives in flight, on this rank.
  void abort() noexcept { watchdog_.abort(); }

 private:
  const c10::intrusive_ptr<c10d::Backend> c10d_backend_;
  const at::Device device_;
  // Collectives are launched on one stream and finished on another, so that the next one does not wait for finish().
  const devices::SideStream launch_stream_;
  const devices::SideStream finish_stream_;
  Watchdog watchdog_;
};

}  // namespace tutti::comm
