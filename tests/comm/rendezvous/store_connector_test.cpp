// Ranks: 8 processes on simulated nodes of their own. The limit on file descriptors of the rank that serves the store.
#include "comm/rendezvous/store_connector.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "core/descriptor_limit.h"
#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::comm::store_connector_test {
namespace {

using test::expect_success;
using test::RankProgram;
using test::run_processes;

// Less than the 24 connections that 8 ranks make to the store.
constexpr rlim_t too_few = 12;

rlimit limit_now() {
  rlimit limit{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

void limit_to(rlimit limit) {
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

const RankProgram has_too_few("store_connector_has_too_few", [] {
  const auto environment = read_environment();
  const bool serves = environment.rank == 0;
  const rlim_t few = count_open_descriptors() + too_few;
  if (serves) limit_to({.rlim_cur = few, .rlim_max = limit_now().rlim_max});
  Communicator::connect(environment).barrier().wait();
  if (serves) {
    EXPECT_GT(limit_now().rlim_cur, few);
  }
});

TEST(StoreConnector, RaisesTheLimitThatIsTooLow) {
  expect_success(run_processes(has_too_few, 8, {.num_nodes = 8}));
}

const RankProgram may_not_have_more("store_connector_may_not_have_more", [] {
  const auto environment = read_environment();
  if (environment.rank != 0) return;
  const rlim_t few = count_open_descriptors() + too_few;
  limit_to({.rlim_cur = few, .rlim_max = few});
  try {
    Communicator::connect(environment);
    ADD_FAILURE() << "connected";
  } catch (const UsageError& error) {
    const std::string allowed = "Its limit is " + std::to_string(few) + ": raise the hard limit (ulimit -Hn";
    EXPECT_NE(std::string(error.what()).find(allowed), std::string::npos) << error.what();
  }
});

TEST(StoreConnector, ReportsAHardLimitThatIsTooLow) {
  expect_success(run_processes(may_not_have_more, 8, {.num_nodes = 8}));
}

}  // namespace
}  // namespace tutti::comm::store_connector_test
