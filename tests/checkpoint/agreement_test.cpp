// The common result of work that may fail on some ranks. 2 and 3 ranks as threads.
#include "checkpoint/agreement.h"

#include <c10/util/Exception.h>
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

const RankCase texts("agreement_texts", [](const Communicator& communicator) {
  const auto text_of = [&](const std::function<std::string()>& work) -> std::string {
    try {
      checkpoint::on_all_ranks(communicator, "work", work);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(text_of([&]() -> std::string { throw CheckpointError(communicator.rank() == 1 ? "b" : "a"); }),
            "ranks 0, 2: a; rank 1: b");
  const std::string from_libtorch = text_of([&]() -> std::string {
    TORCH_CHECK(communicator.rank() != 1, "LibTorch's reason");
    return {};
  });
  EXPECT_TRUE(from_libtorch.starts_with("rank 1: LibTorch's reason")) << from_libtorch;
  EXPECT_EQ(from_libtorch.find("frame #"), std::string::npos) << from_libtorch;
});
TEST(Agreement, TheMessageNamesTheRanksOfEachErrorOnceAndHasNoBacktrace) {
  texts.on_threads({3});
}

}  // namespace
}  // namespace tutti::test::agreement_test
