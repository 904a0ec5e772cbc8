// Ranks: 4 as threads, in two groups of 2, and 3 as processes. Errors in a group name ranks by their numbers in the
// job.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"

namespace tutti::group_errors_test {
namespace {

using namespace std::chrono_literals;

template <typename Failure, typename Call>
void expect_text(const std::string& text, const Call& call, const std::vector<int>& ranks = {1}) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown instead of: " << text;
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find(text), std::string::npos) << failure.what();
    if constexpr (std::is_base_of_v<PeerError, Failure>) {
      EXPECT_EQ(failure.ranks(), ranks);
    }
  }
}

/// Ranks 2 and 3 are ranks 0 and 1 of their group. Rank 3 enters only the first call.
void check_group(const Communicator& communicator) {
  const int rank = communicator.rank();
  const auto group = communicator.split(rank / 2);
  auto tensor = at::ones({4});
  if (rank >= 2) {
    const auto different_calls = [&] { (rank == 2 ? group->all_reduce(tensor) : group->barrier()).wait(); };
    expect_text<MismatchError>(
        "rank 2 calls all_reduce(float [4], sum) where rank 3 calls barrier() (operation 0 of "
        "the group of ranks 2, 3)",
        different_calls);
  }
  if (rank == 2) {
    const CallOptions call{.timeout = 100ms};
    expect_text<TimeoutError>("receive (tag 0) of the group of ranks 2, 3: no message from rank 3 within 100 ms",
                              [&] { group->receive(tensor, 1, 0, call).wait(); });
    expect_text<TimeoutError>("monitored_barrier of the group of ranks 2, 3: Rank 3 failed to pass",
                              [&] { group->monitored_barrier(false, call); });
    expect_text<TimeoutError>(
        "all_reduce (operation 1) of the group of ranks 2, 3: rank 3 did not enter the call within 100 ms; rank 2 was "
        "waiting",
        [&] { group->all_reduce(tensor, ReduceOp::sum, call).wait(); });
  }
  communicator.barrier().wait();
}

// A call that differs between the ranks takes one operation number on each of them.
TEST(GroupErrors, GroupsConnectAfterCallsThatDiffer) {
  for (const char* backend : {"auto", "shared_memory", "tcp"}) {
    run_thread_ranks(2,
                     [](const Communicator& communicator) {
                       const auto differ = [&](bool makes_group) {
                         makes_group ? (void)communicator.duplicate("first") : communicator.barrier().wait();
                       };
                       EXPECT_THROW(differ(communicator.rank() == 0), MismatchError);
                       const auto sum = [](const Communicator& group) {
                         auto ones = at::ones({4});
                         group.all_reduce(ones, ReduceOp::sum, {.timeout = 20s}).wait();
                         EXPECT_EQ(ones[0].item<float>(), group.size());
                       };
                       sum(communicator.duplicate("second"));
                       sum(*communicator.split(0, 0, {.timeout = 20s}));
                     },
                     {.backend = backend});
  }
}

TEST(GroupErrors, NameTheRanksOfTheJob) {
  for (const char* backend : {"auto", "shared_memory"}) {
    SCOPED_TRACE(backend);
    run_thread_ranks(4, check_group, {.backend = backend});
  }
}

TEST(GroupErrors, AnAbortedCommunicatorMakesNoSubgroup) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    communicator.abort("the program ends");
    expect_text<PeerError>("the program ends", [&] { (void)communicator.subgroup({0, 1}, "late"); }, {});
  });
}

// Rank 2 does not call subgroup(). The ranks leave together, because one of them runs the coordinator.
const test::RankProgram lacks_a_call("group_lacks_a_call", [] {
  const auto communicator = Communicator::connect(read_environment(), {.timeout = 1s});
  if (communicator.rank() == 1) {
    expect_text<TimeoutError>(
        "subgroup 'pair': rank 2 did not join within 1 s the group of ranks 1, 2; the other ranks are waiting. Each of "
        "them must call subgroup()",
        [&] {
          (void)communicator.subgroup({1, 2}, "pair");
        },
        {2});
  }
  communicator.barrier({.timeout = 60s}).wait();
});

TEST(GroupErrors, NameTheRankThatDoesNotCallSubgroup) {
  test::expect_success(test::run_processes(lacks_a_call, 3));
}

const test::RankProgram waits_for_a_call("group_waits_for_a_call", [] {
  const auto communicator = Communicator::connect(read_environment());
  if (communicator.rank() == 1) (void)communicator.subgroup({1, 2}, "pair");
  communicator.barrier().wait();
});

TEST(GroupErrors, AreLoggedLongBeforeTheTimeout) {
  test::RankProcesses ranks(waits_for_a_call, 3);
  EXPECT_TRUE(ranks.wait_for_output(
      1, "subgroup 'pair' has waited for 10 s for rank 2, which has not joined. It fails after 1800 s."));
}

}  // namespace
}  // namespace tutti::group_errors_test
