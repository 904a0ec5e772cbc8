// Slow-operation warnings. Ranks: none, and 3 processes.
#include "comm/shm/last_operation.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <thread>

#include "comm/backend/slow_operation_warning.h"
#include "flight/recorder.h"
#include "support/rank_case.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm::last_operation_test {
namespace {

/// A rank that has recorded its last operation.
struct Rank {
  std::shared_ptr<flight::Recorder> recorder = flight::Recorder::create_in_memory({});
  std::unique_ptr<LastOperation> last_operation = std::make_unique<LastOperation>();

  void call(Operation operation) const {
    operation.entry = recorder->record_call({.text = flight::call_text(operation.op_name, "", operation.name),
                                             .communicator = "job",
                                             .operation = operation.number,
                                             .call_site = operation.call_site});
    last_operation->set(operation);
  }
  std::string describe(Deadline now) const { return last_operation->describe(now); }
};

TEST(LastOperation, DescribesTheOperation) {
  const Rank rank;
  EXPECT_EQ(rank.describe(Clock::now()), "none");
  rank.call({.number = 16, .op_name = "barrier", .name = "epoch"});
  const auto later = Clock::now() + std::chrono::milliseconds(11'500);
  EXPECT_EQ(rank.describe(later), "barrier 'epoch' (operation 16), 11 s ago");
  rank.call({.number = 17, .op_name = "gradient sum", .name = ""});
  EXPECT_EQ(rank.describe(later), "gradient sum (operation 17), 11 s ago");
  EXPECT_EQ(rank.describe(Deadline{}), "gradient sum (operation 17), 0 s ago");
  rank.call({.number = 18, .op_name = "barrier", .name = "epoch", .call_site = {.file = "train.cpp", .line = 42}});
  EXPECT_EQ(rank.describe(Deadline{}), "barrier 'epoch' (operation 18, train.cpp:42), 0 s ago");
}

TEST(LastOperation, SaysIfTheRecordDoesNotHoldItAnyMore) {
  const Rank rank;
  rank.call({.number = 16, .op_name = "barrier", .name = ""});
  for (std::uint32_t i = 0; i <= flight::record_capacity; ++i)
    rank.recorder->record_call({.text = "elsewhere()", .communicator = "job"});
  EXPECT_EQ(rank.describe(Clock::now()), "no longer in its flight record");
}

TEST(LastOperation, LongNamesAreTruncated) {
  const Rank rank;
  for (const std::size_t length : {40, 80, 93, 94, 95, 96, 500}) {
    const std::string name(length, 'n');
    rank.call({.number = 1, .op_name = "all_reduce", .name = name});
    const std::string described = rank.describe(Clock::now());
    EXPECT_EQ(described.find("all_reduce 'nnn"), 0U) << described;
    EXPECT_LT(described.size(), 140U) << described;
    rank.call({.number = 1, .op_name = name, .name = name, .call_site = {.file = name.c_str(), .line = 42}});
    const std::string all_cut = rank.describe(Clock::now());
    EXPECT_EQ(all_cut.find("nnn"), 0U) << all_cut;
    EXPECT_NE(all_cut.find("n:42), 0 s ago"), std::string::npos) << all_cut;
    EXPECT_LT(all_cut.size(), 200U) << all_cut;
  }
}

TEST(SlowOperationWarning, IsRepeatedAtGrowingIntervals) {
  const Deadline begin{};
  SlowOperationWarning warning(begin);
  std::vector<int> seconds;
  for (int second = 0; second <= 2000; ++second) {
    const auto now = begin + std::chrono::seconds(second);
    if (!warning.due(now)) continue;
    seconds.push_back(second);
    EXPECT_EQ(warning.waited(now), std::chrono::seconds(second));
  }
  EXPECT_EQ(seconds, (std::vector<int>{10, 60, 660, 1260, 1860}));
}

constexpr int line_of_barrier = __LINE__ + 2;
void run_barrier(const Communicator& job, const std::string& name) {
  job.barrier({.name = name}).wait();
}

const test::RankProgram one_is_absent("shm_one_rank_is_absent", [] {
  const Communicator job = Communicator::connect(read_environment(), {});
  run_barrier(job, "begin");
  if (job.rank() == 1) {
    std::signal(SIGUSR1, [](int) {});
    ::pause();
  }
  // Rank 2 waits for 10 s earlier than rank 0, but does not log: rank 0 is the lowest waiting rank.
  if (job.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  run_barrier(job, "end");
  std::cout << "all came" << std::endl;
});
TEST(SlowOperationWarning, TheFirstWaitingRankNamesTheAbsentRank) {
  test::RankProcesses ranks(one_is_absent, 3);
  const std::string place = "last_operation_test.cpp:" + std::to_string(line_of_barrier);
  EXPECT_TRUE(ranks.wait_for_output(0, "barrier 'end' (operation 1, " + place +
                                           ") has waited for 10 s for rank 1 (its last call here: barrier 'begin' "
                                           "(operation 0, " +
                                           place + "), 1"));
  ranks.send_signal(1, SIGUSR1);
  const auto results = ranks.wait();
  test::expect_success(results);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(results[rank].output.find("has waited"), std::string::npos) << results[rank].output;
  }
}

}  // namespace
}  // namespace tutti::comm::last_operation_test
