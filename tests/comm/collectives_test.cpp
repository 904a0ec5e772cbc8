// Ranks: 1 to 5 as threads that send messages or share memory; 2 x 2, 3 x 2 and 2 x 3 on several nodes.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/collective_checks.h"
#include "support/ranks.h"
#include "tutti/comm/thread_ranks.h"

namespace tutti::test::collectives_test {
namespace {

using Check = void (*)(const Communicator&);

struct Place {
  const char* name;
  const char* backend;
  std::vector<std::pair<int, int>> sizes;  // ranks, nodes
};

const std::vector<Place> places = {
    {"messages", "auto", {{1, 1}, {2, 1}, {3, 1}, {4, 1}}},
    {"shared_memory", "shared_memory", {{2, 1}, {3, 1}, {5, 1}}},
    {"hierarchical", "hierarchical", {{4, 2}, {6, 3}, {8, 2}}},
};

const std::vector<std::pair<const char*, Check>> checks = {
    {"all_reduce", &check_all_reduce},
    {"all_gather", &check_all_gather},
    {"reduce_scatter", &check_reduce_scatter},
    {"all_to_all", &check_all_to_all},
    {"roots", &check_rooted},
    {"messages", &check_messages},
    {"broadcast", &check_broadcast},
    {"objects", &check_objects},
    {"pending", &check_pending},
    {"layout_of_tensors", &check_layout_of_tensors},
    {"lazy_tensors", &check_lazy_tensors},
    {"groups", &check_groups},
    {"mismatches", &check_mismatches},
    {"unwaited", &check_unwaited},
};

class OnThreads : public testing::TestWithParam<std::tuple<Place, std::pair<const char*, Check>>> {};

TEST_P(OnThreads, Holds) {
  const auto& [place, check] = GetParam();
  for (const auto& [size, nodes] : place.sizes) {
    SCOPED_TRACE(size);
    run_thread_ranks(size, check.second, {.backend = place.backend}, nodes);
  }
}

std::string name_of(const testing::TestParamInfo<OnThreads::ParamType>& instance) {
  const auto& [place, check] = instance.param;
  return std::string(place.name) + "_" + check.first;
}

INSTANTIATE_TEST_SUITE_P(Collectives, OnThreads, testing::Combine(testing::ValuesIn(places), testing::ValuesIn(checks)),
                         name_of);

// With 11 ranks a small all-gather runs in several steps.
TEST(ManyRanks, GatherSmallObjectsInSeveralSteps) {
  run_thread_ranks(11, [](const Communicator& communicator) {
    check_objects(communicator);
    check_layout_of_tensors(communicator);
    check_groups(communicator);
    check_mismatches(communicator);
  });
}

TEST(Single, EveryCheckHoldsWithoutLaunch) {
  check_all(Communicator());
}

}  // namespace
}  // namespace tutti::test::collectives_test
