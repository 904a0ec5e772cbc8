// Ranks: none. LateValue on the simulated device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/simulated_device/simulated_device.h"
#include "tutti/device/late_value.h"

namespace tutti::late_value_test {
namespace {

namespace simulated = test::simulated;

TEST(LateValue, WaitsForTheDeviceWhenItIsRead) {
  const auto options = at::TensorOptions(at::kDouble).device(at::Device(simulated::type, 0));
  const at::Tensor number = at::full({}, 2.5, options);
  simulated::reset_counts();
  const LateValue value(number);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_EQ(value, 2.5);
  EXPECT_EQ(simulated::counts().all_waits(), 1);
  EXPECT_EQ(2 * value, 5.0) << "the second read does not wait";
  EXPECT_EQ(simulated::counts().all_waits(), 1);
  EXPECT_TRUE(value.is_ready());
}

TEST(LateValue, IsADoubleOnTheHost) {
  EXPECT_EQ(LateValue(at::scalar_tensor(1.5, at::kFloat)), 1.5);
  std::ostringstream text;
  text << LateValue(0.25);
  EXPECT_EQ(text.str(), "0.25");
}

}  // namespace
}  // namespace tutti::late_value_test
