// Invalid options, and the reasons that check_options() gives.
#include "local_sgd/check_options.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tutti/core/error.h"

namespace tutti::local_sgd::check_options_test {
namespace {

void expect_refused(const LocalSgdAlgorithmOptions& options, const std::string& reason) {
  try {
    check_options(options);
    ADD_FAILURE() << "accepted, but expected: " << reason;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(LocalSgdAlgorithmOptions, AcceptsEveryMethodWithItsDefaults) {
  check_options({});
  check_options({.local_steps = 48, .outer_optimizer = OuterOptimizer::slowmo, .node_sync_steps = 3});
  check_options({.local_steps = 500, .outer_optimizer = OuterOptimizer::diloco, .wire = WireFormat::int8});
  check_options({.local_steps = 9,
                 .outer_optimizer = OuterOptimizer::diloco,
                 .streaming = {.fragments = 3, .overlap_steps = 2, .mix = 0.5}});
}

TEST(LocalSgdAlgorithmOptions, RefusesNumbersOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused({.local_steps = 0}, "local_steps");
  expect_refused({.warmup_steps = -1}, "warmup_steps");
  expect_refused({.message_bytes = 8}, "message_bytes");
  expect_refused({.outer_optimizer = OuterOptimizer::slowmo, .slowmo = {.alpha = 0}}, "slowmo.alpha");
  expect_refused({.outer_optimizer = OuterOptimizer::slowmo, .slowmo = {.beta = 1}}, "slowmo.beta");
  expect_refused({.outer_optimizer = OuterOptimizer::diloco, .diloco = {.lr = nan}}, "diloco.lr");
  expect_refused({.outer_optimizer = OuterOptimizer::diloco, .diloco = {.momentum = nan}}, "diloco.momentum");
  expect_refused({.streaming = {.fragments = 0}}, "fragments");
  expect_refused({.streaming = {.overlap_steps = -1}}, "overlap_steps");
  expect_refused({.streaming = {.mix = 1}}, "mix");
  expect_refused({.streaming = {.mix = 0.5, .keep_local_progress = true}}, "keep_local_progress");
}

TEST(LocalSgdAlgorithmOptions, RefusesTheOptionsOfAnotherMethod) {
  expect_refused({.slowmo = {.beta = 0.6}}, "slowmo is set");
  expect_refused({.outer_optimizer = OuterOptimizer::slowmo, .diloco = {.nesterov = false}}, "diloco is set");
}

TEST(LocalSgdAlgorithmOptions, RefusesStepsInsideANodeThatDoNotDivideTheRound) {
  expect_refused({.local_steps = 8, .node_sync_steps = 3}, "proper divisor");
  expect_refused({.local_steps = 8, .node_sync_steps = 8}, "proper divisor");
}

TEST(LocalSgdAlgorithmOptions, RefusesAnOverlapThatReachesTheNextFragment) {
  check_options({.local_steps = 8, .streaming = {.fragments = 2, .overlap_steps = 3}});
  expect_refused({.local_steps = 8, .streaming = {.fragments = 2, .overlap_steps = 4}}, "overlap_steps");
  expect_refused({.local_steps = 4, .streaming = {.fragments = 5}}, "fragments");
}

TEST(LocalSgdAlgorithmOptions, RefusesMethodsThatCannotStream) {
  const StreamingOptions streaming{.fragments = 2};
  expect_refused({.outer_optimizer = OuterOptimizer::slowmo, .streaming = streaming}, "SlowMo cannot stream");
  expect_refused({.node_sync_steps = 2, .streaming = streaming}, "exclude each other");
  expect_refused({.streaming = streaming, .state_sync = {.momentum = MomentumRule::average}}, "momentum cannot");
}

}  // namespace
}  // namespace tutti::local_sgd::check_options_test
