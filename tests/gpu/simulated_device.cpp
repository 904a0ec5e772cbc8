// Used in a build without CUDA.
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "gpu/device.h"
#include "support/simulated_device/simulated_device.h"

namespace tutti::test::gpu {

c10::Device device() {
  static std::once_flag once;
  std::call_once(once, [] { simulated::register_device(); });
  return {simulated::type, 0};
}

bool is_simulated() {
  return true;
}

void wait_for_device() {
  simulated::wait_for_device(device().index(), "test");
}

void keep_device_busy() {
  simulated::launch(simulated::current_stream(device().index()),
                    [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
}

void expect_no_host_waits(const std::function<void()>& work) {
  const auto before = simulated::counts();
  work();
  const auto after = simulated::counts();
  for (const auto& [reason, count] : after.waits) {
    const auto earlier = before.waits.find(reason);
    const auto more = count - (earlier == before.waits.end() ? 0 : earlier->second);
    EXPECT_EQ(more, 0) << "the host waited for the device: " << reason;
  }
}

std::optional<C10dBackendFactory> nccl_on_one_device(const std::string&) {
  return std::nullopt;
}

}  // namespace tutti::test::gpu
