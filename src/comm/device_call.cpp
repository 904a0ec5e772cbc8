#include "comm/device_call.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <string>

#include "comm/device/await_device.h"
#include "tutti/core/error.h"

namespace tutti::comm {

std::shared_ptr<const devices::SideStream> DeviceStreams::of(at::Device device, Kind kind) {
  const std::lock_guard lock(mutex_);
  auto& stream = streams_[{device.index(), kind}];
  if (!stream) stream = std::make_shared<const devices::SideStream>(device);
  return stream;
}

DeviceCall::DeviceCall(at::Device device, std::vector<ContiguousTensor> tensors,
                       std::shared_ptr<const devices::SideStream> stream)
    : device_(device),
      tensors_(std::move(tensors)),
      stream_(std::move(stream)),
      called_(devices::StreamEvent::on_current_stream(device)) {}

void DeviceCall::run(int rank, const Operation& operation, const std::function<bool()>& is_cancelled,
                     const std::function<void()>& body) {
  const std::vector<ContiguousTensor> tensors = std::exchange(tensors_, {});
  for (const auto& tensor : tensors) tensor.record_use(*stream_);
  stream_->run([&] {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    called_.block_current_stream();
    bool copies = false;
    for (const auto& tensor : tensors) copies = tensor.copy_to_host() || copies;
    if (copies) await_device(stream_->record_event(), device_, rank, operation, is_cancelled);
    body();
    completed_.emplace(stream_->record_event());
  });
}

std::vector<ContiguousTensor> CallTensors::add_all(const std::vector<at::Tensor>& tensors, Use use) {
  std::vector<ContiguousTensor> all;
  for (const auto& tensor : tensors) all.push_back(add(tensor, use));
  return all;
}

std::shared_ptr<DeviceCall> CallTensors::start(DeviceStreams& streams, DeviceStreams::Kind kind) {
  if (on_host() || traits_.all_devices) return nullptr;
  return std::make_shared<DeviceCall>(*device_, std::move(on_device_), streams.of(*device_, kind));
}

ContiguousTensor CallTensors::add(const at::Tensor& tensor, Use use, bool is_written) {
  require_dense(what_, tensor);
  if (device_ && *device_ != tensor.device()) {
    throw UsageError(std::string(what_) + ": the tensors of the call are on " + device_->str() + " and on " +
                     tensor.device().str() + "; all of them must be on one device.");
  }
  device_ = tensor.device();
  const bool direct = traits_.all_devices ||
                      (has_device_form_ && traits_.device_collectives && traits_.device == tensor.device().type());
  ContiguousTensor one(what_, tensor, use, direct ? DeviceAccess::direct : DeviceAccess::staged);
  if (!on_host()) on_device_.push_back(one);
  if (is_written && use != Use::input) written_.push_back(one);
  return one;
}

}  // namespace tutti::comm
