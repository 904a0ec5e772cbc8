// Ranks: none.
#include "comm/engine/rank_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/engine/transfer.h"
#include "tutti/core/error.h"

namespace tutti::comm::rank_group_test {
namespace {

// The fourth of each of three nodes with four ranks.
const RankGroup fourth_ranks{.members = {3, 7, 11}};

template <typename Failure>
Failure failure_of(const Failure& thrown) {
  try {
    fourth_ranks.run([&] { throw thrown; });
  } catch (const Failure& failure) {
    return failure;
  }
  throw std::logic_error("nothing was thrown");
}

TEST(RankGroup, TransferErrorsNameRanksOfTheWhole) {
  const auto failure = failure_of(
      TransferError(TransferError::Kind::stopped, {0, 2}, "has been stopped", std::chrono::milliseconds(1500)));
  EXPECT_EQ(failure.kind(), TransferError::Kind::stopped);
  EXPECT_EQ(failure.peers(), (std::vector{3, 11}));
  EXPECT_EQ(failure.what(), std::string("has been stopped"));
  EXPECT_EQ(failure.waited(), std::chrono::milliseconds(1500));
}

TEST(RankGroup, ErrorsOfConnectingNameRanksOfTheWhole) {
  const auto timeout = failure_of(Timeout("rank 2 did not come within 1 s", {2}));
  EXPECT_EQ(timeout.ranks(), std::vector{11});
  EXPECT_EQ(timeout.what(),
            std::string("rank 11: rank 2 did not come within 1 s (Here ranks are counted among 3, from rank 3 to rank "
                        "11.)"));
  EXPECT_EQ(failure_of(PeerFailure("Connecting over Gloo: rank 1: it did not answer.", {1})).ranks(), std::vector{7});
  EXPECT_EQ(failure_of(PeerFailure("The store is gone.", {})).what(),
            std::string("The store is gone. (Here ranks are counted among 3, from rank 3 to rank 11.)"));
}

TEST(RankGroup, OtherErrorsStayAsTheyAre) {
  EXPECT_EQ(failure_of(UsageError("rank 1 asks for another engine.")).what(),
            std::string("rank 1 asks for another engine."));
  EXPECT_EQ(fourth_ranks.run([] { return 5; }), 5);
}

}  // namespace
}  // namespace tutti::comm::rank_group_test
