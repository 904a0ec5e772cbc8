// Ranks: none. Streams and events of a fake device that only records its calls.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/device/side_stream.h"

namespace tutti::comm::side_stream_test {
namespace {

constexpr auto device_type = c10::DeviceType::PrivateUse1;
const c10::Device device(device_type, 0);
constexpr c10::StreamId pool_stream = 7;

std::vector<std::string>& requests() {
  static std::vector<std::string> list;
  return list;
}

c10::Stream& current_stream() {
  thread_local c10::Stream stream(c10::Stream::DEFAULT, device);
  return stream;
}

struct RecordingGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return current_stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, pool_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return std::exchange(current_stream(), stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = &requests();
    requests().push_back("record on " + std::to_string(stream.id()));
  }
  void block(void*, const c10::Stream& stream) const override {
    requests().push_back("stream " + std::to_string(stream.id()) + " waits");
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, RecordingGuard)

TEST(SideStream, WorkRunsOnItAndOtherStreamsWaitForAnEventOnly) {
  requests().clear();
  const SideStream side(device);
  side.run([] { EXPECT_EQ(current_stream().id(), pool_stream); });
  EXPECT_EQ(current_stream().id(), 0) << "the thread's own stream is back";
  const StreamEvent done = side.record_event();
  EXPECT_EQ(requests(), std::vector<std::string>{"record on 7"});
  done.block_current_stream();
  EXPECT_EQ(requests(), (std::vector<std::string>{"record on 7", "stream 0 waits"}));
  side.run([&done] { done.block_current_stream(); });
  EXPECT_EQ(requests().back(), "stream 7 waits");
}

TEST(SideStream, IsTheThreadItselfOnTheCpu) {
  requests().clear();
  const SideStream side(c10::kCPU);
  bool ran = false;
  side.run([&ran] { ran = true; });
  EXPECT_TRUE(ran);
  side.record_event().block_current_stream();
  EXPECT_TRUE(requests().empty());
}

}  // namespace
}  // namespace tutti::comm::side_stream_test
