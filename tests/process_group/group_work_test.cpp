// Ranks: none. Works that wait for others.
#include "process_group/group_work.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace tutti::test::group_work_test {
namespace {

using process_group::GroupWork;

// all_gather() copies to its list of outputs then.
TEST(GroupWork, AWorkThatCombinesOthersWaitsForTheirLastSteps) {
  const auto collective = std::make_shared<comm::WorkState>();
  std::promise<void> may_write;
  std::atomic<bool> written = false;
  const auto start = [](std::vector<Work> works, std::function<void()> on_completed) {
    return GroupWork::start(0, 0, std::chrono::minutes(1), {},
                            {.works = std::move(works), .on_completed = std::move(on_completed)});
  };
  const auto gather = start({Work(collective)}, [&] {
    may_write.get_future().wait();
    written = true;
  });
  std::thread worker([&] { collective->end(nullptr); });
  Work(collective).wait();
  const auto combined = start(gather->parts(), {});
  EXPECT_FALSE(combined->isCompleted());
  may_write.set_value();
  combined->wait(c10d::kUnsetTimeout);
  EXPECT_TRUE(written);
  worker.join();
}

}  // namespace
}  // namespace tutti::test::group_work_test
