// Ranks: none. Whether threads of this process run.
#include "comm/deadlock/thread_times.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "core/thread_name.h"

namespace tutti::comm::thread_times_test {
namespace {

pid_t this_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

TEST(ThreadTimes, NamesOfServiceThreads) {
  EXPECT_TRUE(is_service_thread("tutti-deadlock"));
  EXPECT_TRUE(is_service_thread("tutti-coord"));
  EXPECT_TRUE(is_service_thread("pt_tcpstore_uv"));
  for (const char* name : {"tutti-worker", "tutti-train", "pt_autograd_0", ""}) {
    EXPECT_FALSE(is_service_thread(name)) << name;
  }
}

// Other threads of the test program may exist, so the tests look at their own thread only.
TEST(ThreadTimes, AThreadThatWaitsKeepsItsTimeAndOneThatRunsIsNotIdle) {
  std::promise<pid_t> id;
  std::promise<void> may_compute;
  std::atomic<bool> computes = false;
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    id.set_value(this_thread());
    may_compute.get_future().wait();
    computes = true;
    while (!stop) {
    }
  });
  const pid_t other = id.get_future().get();
  const std::set<pid_t> excluded{this_thread()};
  std::optional<ThreadTimes> times;
  while (!times) times = idle_thread_times(excluded);  // until the thread waits
  ASSERT_TRUE(times->contains(other));
  EXPECT_FALSE(times->contains(this_thread()));
  const auto before = times->at(other);
  while (!(times = idle_thread_times(excluded))) {
  }
  EXPECT_EQ(times->at(other), before);

  may_compute.set_value();
  while (!computes) std::this_thread::yield();
  EXPECT_FALSE(idle_thread_times(excluded)) << "it runs, or is ready to run";
  EXPECT_TRUE(idle_thread_times({this_thread(), other}));
  stop = true;
  thread.join();
}

TEST(ThreadTimes, ServiceThreadsAreLeftOut) {
  std::promise<pid_t> id;
  std::promise<void> stop;
  std::thread thread([&] {
    const ScopedThreadName name("tutti-tcp");
    id.set_value(this_thread());
    stop.get_future().wait();
  });
  const pid_t other = id.get_future().get();
  std::optional<ThreadTimes> times;
  while (!times) times = idle_thread_times({this_thread()});
  EXPECT_FALSE(times->contains(other));
  stop.set_value();
  thread.join();
}

}  // namespace
}  // namespace tutti::comm::thread_times_test
