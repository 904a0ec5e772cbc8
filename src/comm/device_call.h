#pragma once
// Calls of a Communicator on device tensors.
//
// Order: the call records an event on the calling thread's current stream. The library's thread runs the operation on a
// side stream, after that event. The operation ends with an event on the side stream, for which Work::wait() makes the
// waiting thread's current stream wait. No thread of the program waits for the device.
//
// Access: a backend with device_collectives works on the device's memory. For all others the side stream copies inputs
// to pinned memory, the library's thread waits for that copy, at most for the timeout of the call, and the results are
// copied back on the side stream.
//
// Lifetime: the call holds its tensors until its last step is queued. From then on the device's allocator keeps their
// memory until the side stream has reached that step (SideStream::record_use). Memory that is freed by a deleter of its
// own must stay valid until the stream that called Work::wait() has reached that point.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/tensor_checks.h"
#include "device/devices.h"
#include "device/side_stream.h"

namespace tutti::comm {

/// The side streams of one communicator. Kinds of operations that do not wait for one another have streams of their
/// own. Thread safe.
class DeviceStreams {
 public:
  enum class Kind { collectives, sends, receives };
  std::shared_ptr<const devices::SideStream> of(at::Device device, Kind kind);

 private:
  std::mutex mutex_;
  std::map<std::pair<at::DeviceIndex, Kind>, std::shared_ptr<const devices::SideStream>> streams_;
};

/// The device's part of one call.
class DeviceCall {
 public:
  /// Records the event after which the operation runs. All `tensors` are on `device`.
  DeviceCall(at::Device device, std::vector<ContiguousTensor> tensors,
             std::shared_ptr<const devices::SideStream> stream);

  /// Runs `body` on the side stream, on a thread of the library. Call once.
  void run(int rank, const Operation& operation, const std::function<bool()>& is_cancelled,
           const std::function<void()>& body);
  /// Makes the device the current one of the calling thread, a thread of the library that serves several devices.
  void make_device_current() const { devices::CurrentDevice(device_).make_current(); }
  /// Makes later work on the calling thread's current stream wait for the result. Call after run().
  void block_current_stream() const { completed_->block_current_stream(); }

 private:
  at::Device device_;
  std::vector<ContiguousTensor> tensors_;
  std::shared_ptr<const devices::SideStream> stream_;
  devices::StreamEvent called_;
  std::optional<devices::StreamEvent> completed_;
};

/// Checks and holds the tensors of one call, which must be on one device.
class CallTensors {
 public:
  /// `has_device_form` is false for messages, which no backend sends from the device's memory.
  CallTensors(const char* what, const BackendTraits& traits, bool has_device_form = true)
      : what_(what), traits_(traits), has_device_form_(has_device_form) {}

  ContiguousTensor input(const at::Tensor& tensor) { return add(tensor, Use::input); }
  ContiguousTensor output(const at::Tensor& tensor) { return add(tensor, Use::output); }
  /// `is_written` is false on the root of a broadcast, whose tensor keeps its values.
  ContiguousTensor in_place(const at::Tensor& tensor, bool is_written = true) {
    return add(tensor, Use::in_place, is_written);
  }
  std::vector<ContiguousTensor> inputs(const std::vector<at::Tensor>& tensors) { return add_all(tensors, Use::input); }
  std::vector<ContiguousTensor> outputs(const std::vector<at::Tensor>& tensors) {
    require_distinct(what_, tensors);
    return add_all(tensors, Use::output);
  }
  /// The tensors that the call writes to. Call once.
  std::vector<ContiguousTensor> take_written() { return std::move(written_); }
  bool on_host() const { return !device_ || device_->is_cpu(); }
  /// Records that the call begins here. Null if the tensors are on the host or the group has one rank, whose operations
  /// run on the calling thread and its stream.
  std::shared_ptr<DeviceCall> start(DeviceStreams& streams, DeviceStreams::Kind kind);

 private:
  using Use = ContiguousTensor::Use;
  ContiguousTensor add(const at::Tensor& tensor, Use use, bool is_written = true);
  std::vector<ContiguousTensor> add_all(const std::vector<at::Tensor>& tensors, Use use);

  const char* what_;
  const BackendTraits& traits_;
  bool has_device_form_;
  std::optional<at::Device> device_;
  std::vector<ContiguousTensor> on_device_;
  std::vector<ContiguousTensor> written_;
};

}  // namespace tutti::comm
