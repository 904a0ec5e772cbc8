// Ranks: none.
#include "comm/backend/subgroup.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/backend/transfer_error.h"
#include "tutti/core/error.h"

namespace tutti::comm::subgroup_test {
namespace {

// The ranks with local rank 3 on three nodes with four ranks each.
const Subgroup fourth_ranks{.parent_ranks = {3, 7, 11}};

template <typename Failure>
Failure failure_of(const Failure& thrown) {
  try {
    fourth_ranks.run([&] { throw thrown; });
  } catch (const Failure& failure) {
    return failure;
  }
  throw std::logic_error("nothing was thrown");
}

TEST(Subgroup, TransferErrorsNameParentRanks) {
  const auto failure = failure_of(
      TransferError(TransferError::Kind::process_stopped, {0, 2}, "has been stopped", std::chrono::milliseconds(1500)));
  EXPECT_EQ(failure.kind(), TransferError::Kind::process_stopped);
  EXPECT_EQ(failure.peers(), (std::vector{3, 11}));
  EXPECT_EQ(failure.what(), std::string("has been stopped"));
  EXPECT_EQ(failure.waited(), std::chrono::milliseconds(1500));
}

TEST(Subgroup, ErrorsOfConnectingNameParentRanks) {
  const auto timeout = failure_of(TimeoutError("rank 11 did not connect within 1 s", {2}));
  EXPECT_EQ(timeout.ranks(), std::vector{11});
  EXPECT_EQ(timeout.what(), std::string("rank 11 did not connect within 1 s"));
  EXPECT_EQ(failure_of(PeerError("Connecting over TCP: rank 7: it did not answer.", {1})).ranks(), std::vector{7});
  EXPECT_EQ(failure_of(PeerError("The store is unreachable.", {})).what(), std::string("The store is unreachable."));
}

TEST(Subgroup, OtherErrorsAreUnchanged) {
  EXPECT_EQ(failure_of(UsageError("rank 1 asks for another backend.")).what(),
            std::string("rank 1 asks for another backend."));
  EXPECT_EQ(fourth_ranks.run([] { return 5; }), 5);
}

}  // namespace
}  // namespace tutti::comm::subgroup_test
