// Which options are refused, and why.
#include "local_sgd/check_options.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tutti/core/error.h"

namespace tutti::local_sgd::check_options_test {
namespace {

void expect_refused(const LocalUpdateOptions& options, const std::string& reason) {
  try {
    check_options(options);
    ADD_FAILURE() << "accepted, but expected: " << reason;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(LocalUpdateOptions, AcceptsEveryMethodWithItsDefaults) {
  check_options({});
  check_options({.local_steps = 48, .method = OuterMethod::slowmo, .steps_inside_node = 3});
  check_options({.local_steps = 500, .method = OuterMethod::diloco, .wire = WireFormat::int8});
  check_options(
      {.local_steps = 9, .method = OuterMethod::diloco, .streaming = {.fragments = 3, .overlap_steps = 2, .mix = 0.5}});
}

TEST(LocalUpdateOptions, RefusesNumbersOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused({.local_steps = 0}, "local_steps");
  expect_refused({.warmup_steps = -1}, "warmup_steps");
  expect_refused({.message_bytes = 8}, "message_bytes");
  expect_refused({.method = OuterMethod::slowmo, .slowmo = {.alpha = 0}}, "slowmo.alpha");
  expect_refused({.method = OuterMethod::slowmo, .slowmo = {.beta = 1}}, "slowmo.beta");
  expect_refused({.method = OuterMethod::diloco, .diloco = {.lr = nan}}, "diloco.lr");
  expect_refused({.method = OuterMethod::diloco, .diloco = {.momentum = nan}}, "diloco.momentum");
  expect_refused({.streaming = {.fragments = 0}}, "fragments");
  expect_refused({.streaming = {.overlap_steps = -1}}, "overlap_steps");
  expect_refused({.streaming = {.mix = 1}}, "mix");
  expect_refused({.streaming = {.mix = 0.5, .keep_progress = true}}, "keep_progress");
}

TEST(LocalUpdateOptions, RefusesTheOptionsOfAnotherMethod) {
  expect_refused({.slowmo = {.beta = 0.6}}, "slowmo is set");
  expect_refused({.method = OuterMethod::slowmo, .diloco = {.nesterov = false}}, "diloco is set");
}

TEST(LocalUpdateOptions, RefusesStepsInsideANodeThatDoNotDivideTheRound) {
  expect_refused({.local_steps = 8, .steps_inside_node = 3}, "proper divisor");
  expect_refused({.local_steps = 8, .steps_inside_node = 8}, "proper divisor");
}

TEST(LocalUpdateOptions, RefusesAnOverlapThatReachesTheNextFragment) {
  check_options({.local_steps = 8, .streaming = {.fragments = 2, .overlap_steps = 3}});
  expect_refused({.local_steps = 8, .streaming = {.fragments = 2, .overlap_steps = 4}}, "overlap_steps");
  expect_refused({.local_steps = 4, .streaming = {.fragments = 5}}, "fragments");
}

TEST(LocalUpdateOptions, RefusesWhatCannotStream) {
  const StreamingOptions streaming{.fragments = 2};
  expect_refused({.method = OuterMethod::slowmo, .streaming = streaming}, "SlowMo cannot stream");
  expect_refused({.steps_inside_node = 2, .streaming = streaming}, "exclude each other");
  expect_refused({.streaming = streaming, .contract = {.momentum = MomentumRule::average}}, "momentum cannot");
}

}  // namespace
}  // namespace tutti::local_sgd::check_options_test
