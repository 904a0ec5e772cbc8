// Ranks: none. LateValue on the simulated device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/simulated_device/simulated_device.h"
#include "tutti/device/late_value.h"
#include "tutti/tracking/tracker.h"

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
  EXPECT_LE(simulated::counts().all_waits(), 1);
  simulated::reset_counts();
  EXPECT_EQ(2 * value, 5.0);
  EXPECT_EQ(simulated::counts().all_waits(), 0) << "the second read does not wait";
  EXPECT_TRUE(value.is_ready());
}

TEST(LateValue, IsADoubleOnTheHost) {
  EXPECT_EQ(LateValue(at::scalar_tensor(1.5, at::kFloat)), 1.5);
  std::ostringstream text;
  text << LateValue(0.25);
  EXPECT_EQ(text.str(), "0.25");
}

at::Tensor on_device(double value) {
  return at::full({}, value, at::TensorOptions(at::kDouble).device(at::Device(simulated::type, 0)));
}

TEST(LateValue, TheLastOfSeveralReadFirstWaitsOnce) {
  const LateValue first(on_device(1)), second(on_device(2)), third(on_device(3));
  simulated::reset_counts();
  EXPECT_EQ(third, 3.0);
  simulated::reset_counts();
  EXPECT_EQ(second + first, 3.0);
  EXPECT_EQ(simulated::counts().all_waits(), 0);
}

TEST(LateValue, WorksWhereADoubleDoes) {
  const std::optional<LateValue> norm = LateValue(on_device(0.5));
  EXPECT_TRUE(std::isfinite(*norm));
  EXPECT_TRUE(*norm < 1 && 0 < *norm && *norm == 0.5);
  EXPECT_EQ(norm.value_or(0), 0.5);
  EXPECT_EQ(std::optional<LateValue>().value_or(0), 0.0);
  EXPECT_EQ(std::to_string(*norm), "0.500000");
  EXPECT_EQ(std::sqrt(*norm * 2), 1.0);
  const Scalars scalars{{"norm", *norm}, {"other", norm.value_or(0)}};
  EXPECT_EQ(scalars.front().second, 0.5);
  double sum = 1;
  sum += *norm;
  EXPECT_EQ(sum, 1.5);
  const double plain = *norm;
  const std::optional<double> of_double = norm;
  EXPECT_EQ(plain, *of_double);
  std::vector<double> all;
  all.push_back(*norm);
  EXPECT_EQ(all, std::vector<double>{0.5});
}

TEST(LateValue, AFunctionOfALateValueIsLate) {
  const LateValue value(on_device(2));
  simulated::reset_counts();
  const LateValue twice = value.then([](double number) { return 2 * number; });
  EXPECT_TRUE(twice.is_late());
  EXPECT_EQ(simulated::counts().all_waits(), 0);
  EXPECT_EQ(twice, 4.0);
  EXPECT_LE(simulated::counts().all_waits(), 1);
  EXPECT_TRUE(twice.is_ready() && value.is_ready());
  EXPECT_FALSE(LateValue(2).then([](double number) { return number; }).is_late());
}

TEST(LateValue, ADeferredValueIsComputedOnceUnlessItThrows) {
  int calls = 0;
  const LateValue value = LateValue::deferred([&] {
    if (++calls == 1) throw std::runtime_error("not yet");
    return 7.0;
  });
  const LateValue copy = value;
  EXPECT_FALSE(value.is_ready());
  EXPECT_THROW((void)static_cast<double>(value), std::runtime_error);
  EXPECT_EQ(value, 7.0);
  EXPECT_EQ(copy, 7.0);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(copy.is_ready());
}

}  // namespace
}  // namespace tutti::late_value_test
