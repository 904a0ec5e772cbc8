// Ranks: 1, 2, 3, 4 as threads; 1, 2, 3 as processes over Gloo.
#include <gtest/gtest.h>

#include "comm/collective_checks.h"
#include "support/ranks.h"
#include "tutti/comm/thread_ranks.h"

namespace tutti::test {
namespace {

using Check = void (*)(const Communicator&);

class OnThreads : public testing::TestWithParam<std::pair<const char*, Check>> {};

TEST_P(OnThreads, Holds) {
  for (int size = 1; size <= 4; ++size) {
    SCOPED_TRACE(size);
    run_thread_ranks(size, GetParam().second);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Collectives, OnThreads,
    testing::Values(std::pair("all_reduce", &check_all_reduce), std::pair("all_gather", &check_all_gather),
                    std::pair("reduce_scatter", &check_reduce_scatter), std::pair("all_to_all", &check_all_to_all),
                    std::pair("broadcast", &check_broadcast), std::pair("objects", &check_objects),
                    std::pair("pending", &check_pending), std::pair("layout_of_tensors", &check_layout_of_tensors),
                    std::pair("groups", &check_groups), std::pair("mismatches", &check_mismatches),
                    std::pair("unwaited", &check_unwaited)),
    [](const auto& instance) { return std::string(instance.param.first); });

TEST(Single, EveryCheckHoldsWithoutLaunch) {
  check_all(Communicator());
}

}  // namespace
}  // namespace tutti::test
