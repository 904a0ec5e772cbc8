// Ranks: none. SideStream and StreamEvent on the simulated accelerator.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "device/side_stream.h"
#include "support/simulated_device/simulated_device.h"

namespace tutti::side_stream_test {
namespace {

namespace simulated = test::simulated;
using devices::SideStream;
using devices::StreamEvent;

const at::Device device(simulated::type, 0);
const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(device);

TEST(SideStream, WorkRunsOnAnotherStream) {
  const c10::Stream before = simulated::current_stream(0);
  const SideStream side(device);
  side.run([&] { EXPECT_NE(simulated::current_stream(0).id(), before.id()); });
  EXPECT_EQ(simulated::current_stream(0), before) << "the thread's stream is back";
}

TEST(SideStream, TheCurrentStreamWaitsForAnEventAndTheHostDoesNot) {
  const at::Tensor x = at::zeros({4}, floats);
  simulated::wait_for_device(0, "test");
  const SideStream side(device);
  std::optional<simulated::StreamLatch> latch;
  side.run([&] {
    latch.emplace(simulated::current_stream(0));
    x.fill_(1);
  });
  simulated::reset_counts();
  const StreamEvent filled = side.record_event();
  EXPECT_FALSE(filled.is_reached());
  filled.block_current_stream();
  const at::Tensor copy = x + 0;
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  latch->open();
  EXPECT_EQ(copy[0].item<float>(), 1);
  EXPECT_TRUE(filled.is_reached());
}

TEST(SideStream, TheSideStreamWaitsForAnEventOfTheCurrentStream) {
  const at::Tensor x = at::zeros({4}, floats);
  simulated::wait_for_device(0, "test");
  const SideStream side(device);
  simulated::StreamLatch latch(simulated::current_stream(0));
  x.fill_(1);
  const StreamEvent filled = StreamEvent::on_current_stream(device);
  at::Tensor copy;
  side.run([&] {
    filled.block_current_stream();
    copy = x + 0;
  });
  latch.open();
  side.record_event().block_current_stream();
  EXPECT_EQ(copy[0].item<float>(), 1);
}

TEST(SideStream, WaitBlocksTheHostUntilTheEvent) {
  const at::Tensor x = at::zeros({4}, floats);
  x.fill_(1);
  simulated::reset_counts();
  const StreamEvent filled = StreamEvent::on_current_stream(device);
  filled.wait();
  EXPECT_TRUE(filled.is_reached());
  EXPECT_EQ(simulated::counts().all_waits(), 1);
}

TEST(SideStream, IsTheThreadItselfOnTheCpu) {
  simulated::reset_counts();
  const SideStream side(c10::kCPU);
  bool has_run = false;
  side.run([&has_run] { has_run = true; });
  EXPECT_TRUE(has_run);
  const StreamEvent event = side.record_event();
  EXPECT_TRUE(event.is_reached());
  event.block_current_stream();
  event.wait();
  EXPECT_EQ(simulated::counts().all_waits(), 0);
}

}  // namespace
}  // namespace tutti::side_stream_test
