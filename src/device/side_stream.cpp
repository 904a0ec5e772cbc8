#include "device/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tutti::devices {

StreamEvent::StreamEvent(const std::optional<c10::Stream>& stream) {
  if (!stream) return;
  device_ = stream->device();
  event_.emplace(device_->type());
  event_->record(*stream);
}

StreamEvent StreamEvent::on_current_stream(c10::Device device) {
  if (device.is_cpu()) return StreamEvent(std::nullopt);
  return StreamEvent(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void StreamEvent::block_current_stream() const {
  if (event_) event_->block(c10::impl::VirtualGuardImpl(device_->type()).getStream(*device_));
}

void StreamEvent::wait() const {
  if (event_) event_->synchronize();
}

SideStream::SideStream(c10::Device device) {
  constexpr bool high_priority = true;
  if (!device.is_cpu()) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, high_priority);
  }
}

void SideStream::run(const std::function<void()>& work) const {
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  work();
}

}  // namespace tutti::devices
