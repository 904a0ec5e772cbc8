// The common result of work that may fail on some ranks. 2 ranks as threads.
#include "checkpoint/agreement.h"

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/damaged.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"

namespace tutti::test::agreement_test {
namespace {

template <typename Error>
std::string wrong() {
  throw Error("rank's own reason");
}

const RankCase kinds("agreement_kinds", [](const Communicator& communicator) {
  const auto run = [&](const std::function<std::string()>& first, const std::function<std::string()>& second) {
    checkpoint::on_all_ranks(communicator, "work", communicator.rank() == 0 ? first : second);
  };
  const auto fine = [] { return std::string("fine"); };
  const auto usage = [] { return wrong<UsageError>(); };
  const auto failure = [] { return wrong<CheckpointError>(); };
  const auto damage = [] { return wrong<checkpoint::DamagedCheckpointError>(); };
  const auto is_damage = [&](const auto& first, const auto& second) {
    try {
      run(first, second);
    } catch (const checkpoint::DamagedCheckpointError&) {
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
    ADD_FAILURE() << "the failure of one rank is not that of all ranks";
    return false;
  };
  EXPECT_NO_THROW(run(fine, fine));
  EXPECT_THROW(run(usage, fine), UsageError);
  EXPECT_THROW(run(fine, usage), UsageError);
  EXPECT_TRUE(is_damage(damage, fine));
  // A wrong call, or damage, does not hide another rank's failure, on whichever rank it is.
  EXPECT_FALSE(is_damage(failure, usage));
  EXPECT_FALSE(is_damage(usage, failure));
  EXPECT_FALSE(is_damage(failure, damage));
  EXPECT_FALSE(is_damage(damage, failure));
});
TEST(Agreement, OneKindOfErrorDoesNotHideAnother) {
  kinds.on_threads({2});
}

}  // namespace
}  // namespace tutti::test::agreement_test
