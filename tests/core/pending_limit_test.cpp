// Ranks: none. Which connections are closed that have not introduced themselves, and when the next one is accepted.
#include "core/pending_limit.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace tutti::test::pending_limit_test {
namespace {

TEST(PendingLimit, EvictsTheOldestConnections) {
  using namespace std::chrono_literals;
  const PendingLimit::Time now = PendingLimit::Time{} + 1h;
  EXPECT_EQ(PendingLimit::to_evict({}, now), 0U);
  EXPECT_EQ(PendingLimit::to_evict({now - 11s, now - 10s, now - 9s, now}, now), 2U);
  // At the limit the timeout is shorter.
  std::vector<PendingLimit::Time> pending(PendingLimit::max_pending, now);
  EXPECT_FALSE(PendingLimit::has_capacity(pending.size()));
  EXPECT_EQ(PendingLimit::to_evict(pending, now), 0U);
  pending[0] = pending[1] = now - 300ms;
  EXPECT_EQ(PendingLimit::to_evict(pending, now), 2U);
  pending.pop_back();
  EXPECT_EQ(PendingLimit::to_evict(pending, now), 0U);
}

TEST(AcceptPause, BeginsWithoutADescriptorOrMemory) {
  const AcceptPause::Time now = AcceptPause::Time{} + std::chrono::hours(1);
  AcceptPause pause;
  for (const int error : {EAGAIN, ECONNABORTED, EINTR}) EXPECT_FALSE(pause.on_error(error, now));
  EXPECT_TRUE(pause.is_over(now));
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENOBUFS}) {
    AcceptPause begun;
    EXPECT_TRUE(begun.on_error(error, now));
    EXPECT_FALSE(begun.is_over(now));
    EXPECT_TRUE(begun.is_over(now + AcceptPause::duration));
  }
}

}  // namespace
}  // namespace tutti::test::pending_limit_test
