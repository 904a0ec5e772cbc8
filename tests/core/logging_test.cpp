#include "tutti/core/logging.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tutti/core/error.h"

namespace tutti::logging_test {
namespace {

template <typename Action>
std::string stderr_of(Action action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

std::string all_levels_of(const Logger& logger) {
  return stderr_of([&] {
    logger.debug("d");
    logger.info("i");
    logger.warning("w");
    logger.error("e");
  });
}

TEST(Logger, MarksLinesWithRankAndLevel) {
  EXPECT_EQ(stderr_of([] { Logger(3, LogLevel::warning).warning("slow"); }), "[tutti rank 3] warning: slow\n");
}

TEST(Logger, WritesDebugAndInfoOnRankZeroOnly) {
  EXPECT_EQ(all_levels_of(Logger(0, LogLevel::debug)),
            "[tutti rank 0] debug: d\n[tutti rank 0] info: i\n[tutti rank 0] warning: w\n[tutti rank 0] error: e\n");
  EXPECT_EQ(all_levels_of(Logger(1, LogLevel::debug)), "[tutti rank 1] warning: w\n[tutti rank 1] error: e\n");
}

TEST(Logger, OmitsMessagesBelowItsLevel) {
  EXPECT_EQ(all_levels_of(Logger(0, LogLevel::error)), "[tutti rank 0] error: e\n");
  EXPECT_EQ(all_levels_of(Logger(0, LogLevel::off)), "");
}

// NOLINTBEGIN(concurrency-mt-unsafe): this test has one thread
TEST(Logger, ReadsTheLevelFromTheEnvironment) {
  ::setenv("TUTTI_LOG_LEVEL", "error", 1);
  EXPECT_EQ(all_levels_of(Logger(0)), "[tutti rank 0] error: e\n");
  ::setenv("TUTTI_LOG_LEVEL", "loud", 1);
  EXPECT_THROW(Logger(0), UsageError);
  EXPECT_NO_THROW(Logger(0, LogLevel::info));
  ::unsetenv("TUTTI_LOG_LEVEL");
  EXPECT_EQ(all_levels_of(Logger(0)), "[tutti rank 0] warning: w\n[tutti rank 0] error: e\n");
}
// NOLINTEND(concurrency-mt-unsafe)

TEST(ParseLogLevel, KnowsItsNames) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::debug);
  EXPECT_EQ(parse_log_level("info"), LogLevel::info);
  EXPECT_EQ(parse_log_level("warning"), LogLevel::warning);
  EXPECT_EQ(parse_log_level("error"), LogLevel::error);
  EXPECT_EQ(parse_log_level("off"), LogLevel::off);
  EXPECT_EQ(parse_log_level("Info"), std::nullopt);
  EXPECT_EQ(parse_log_level(""), std::nullopt);
}

}  // namespace
}  // namespace tutti::logging_test
