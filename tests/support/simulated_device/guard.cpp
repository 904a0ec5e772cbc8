// LibTorch's interface to the devices, streams and events of an accelerator.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "support/simulated_device/streams.h"

namespace tutti::test::simulated {
namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return simulated::type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {simulated::type, static_cast<c10::DeviceIndex>(simulated::current_device())};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < settings().devices, "sim: there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(settings().devices); }
  void synchronizeDevice(c10::DeviceIndex device) const override { wait_for_device(device, "synchronizeDevice"); }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return pool_stream(index_of(device)); }
  c10::Stream getNewStream(c10::Device device, int) const override { return pool_stream(index_of(device)); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(stream, "synchronizeStream"); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_on(data.get(), stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event(std::make_shared<EventState>());
    EventState::record(*static_cast<Event*>(*event), stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Event state = *static_cast<Event*>(event);
    launch(
        stream, [state, record = state->last_record()] { state->wait(record); }, /*is_kernel=*/false);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const EventState& state = **static_cast<Event*>(event);
    return state.is_reached(state.last_record());
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    count_wait("synchronizeEvent");
    const Event state = *static_cast<Event*>(event);
    state->wait(state->last_record());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static int index_of(c10::Device device) { return device.has_index() ? device.index() : simulated::current_device(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace tutti::test::simulated
