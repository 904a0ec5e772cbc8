#include "device/side_stream.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>

namespace tutti::devices {
namespace {

/// A copy of a few KiB is done after some 10 us, and a wake-up from a sleep would take longer.
constexpr int polls_before_sleeping = 100;
constexpr auto first_sleep = std::chrono::microseconds(10);
constexpr auto longest_sleep = std::chrono::microseconds(200);

}  // namespace

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

bool StreamEvent::wait_until(std::chrono::steady_clock::time_point deadline,
                             const std::function<bool()>& is_cancelled) const {
  for (int poll = 0; poll < polls_before_sleeping; ++poll) {
    if (is_reached()) return true;
    std::this_thread::yield();
  }
  for (auto sleep = first_sleep; !is_reached(); sleep = std::min(2 * sleep, longest_sleep)) {
    if (is_cancelled() || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(sleep);
  }
  return true;
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

void record_use_on_current_stream(const at::TensorBase& tensor) {
  if (tensor.device().is_cpu() || !tensor.has_storage()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

void SideStream::record_use(const at::TensorBase& tensor) const {
  if (!stream_ || !tensor.has_storage()) return;
  c10::impl::VirtualGuardImpl(stream_->device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
}

}  // namespace tutti::devices
