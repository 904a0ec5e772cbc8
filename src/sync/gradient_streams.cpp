#include "sync/gradient_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "device/devices.h"
#include "device/side_stream.h"

namespace tutti::sync {

namespace {

c10::Stream current_stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Returns whether `stream` was not there.
bool insert_stream(std::vector<c10::Stream>& streams, const c10::Stream& stream) {
  if (std::ranges::find(streams, stream) != streams.end()) return false;
  streams.push_back(stream);
  return true;
}

}  // namespace

bool GradientStreams::add_current(c10::Device device) {
  if (!devices::is_accelerator(device)) return false;
  const c10::Stream stream = current_stream_of(device);
  insert_stream(of_pass_, stream);
  return insert_stream(known_, stream);
}

bool GradientStreams::block_current_stream(c10::Device device) const {
  if (!devices::is_accelerator(device)) return false;
  const c10::Stream current = current_stream_of(device);
  bool any = false;
  for (const c10::Stream& stream : of_pass_) {
    if (stream.device() != device || stream == current) continue;
    devices::StreamEvent(stream).block_current_stream();
    any = true;
  }
  return any;
}

}  // namespace tutti::sync
