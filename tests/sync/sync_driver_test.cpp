// Ranks: none. Synchronizations of one rank.
#include "sync/sync_driver.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>

namespace tutti::sync_driver_test {
namespace {

using sync::GradientStore;
using sync::ParameterSet;
using sync::SyncDriver;
using sync::SyncHeader;
using sync::SyncResult;
using sync::SyncState;

constexpr SyncHeader after_one_pass{.has_gradients = 1, .weighting = Weighting::plain};

class SyncDriverOfOneRank : public testing::Test {
 protected:
  SyncDriverOfOneRank() {
    parameters_.trained[0].tensor.mutable_grad() = at::full({3}, 2.);
    store_.on_gradient(0);
  }
  double value() const { return parameters_.trained[0].tensor.grad()[0].item<double>(); }

  const ReducerOptions options_{.detect_overflow = true};
  ParameterSet parameters_{{{.name = "weight", .tensor = at::zeros({3}).requires_grad_()}}};
  Communicator communicator_;
  GradientStore store_{parameters_, options_, communicator_};
  SyncDriver driver_{store_, options_, communicator_};
  const at::NoGradGuard no_grad_;
};

TEST_F(SyncDriverOfOneRank, RunsASynchronization) {
  driver_.open(after_one_pass);
  EXPECT_EQ(driver_.state(), SyncState::open);
  driver_.start_buckets(1);
  driver_.close("", {});
  EXPECT_EQ(driver_.state(), SyncState::closed);
  const SyncResult result = driver_.wait();
  EXPECT_EQ(driver_.state(), SyncState::idle);
  EXPECT_FALSE(driver_.is_open());
  EXPECT_EQ(result.summed, 1);
  EXPECT_EQ(result.used, std::vector<bool>{true});
  EXPECT_EQ(result.plan.mismatch, std::nullopt);
  driver_.apply(result);
  EXPECT_EQ(value(), 2);
  EXPECT_FALSE(driver_.overflowed());
}

TEST_F(SyncDriverOfOneRank, SumsNothingIfNoRankHasAGradient) {
  driver_.open({});
  EXPECT_TRUE(driver_.is_empty());
  driver_.close_empty();
  EXPECT_EQ(driver_.wait().summed, 0);
}

TEST_F(SyncDriverOfOneRank, DetectsOverflow) {
  parameters_.trained[0].tensor.grad().fill_(std::numeric_limits<double>::infinity());
  driver_.open(after_one_pass);
  driver_.close("", {});
  driver_.apply(driver_.wait());
  EXPECT_TRUE(driver_.overflowed());
}

TEST_F(SyncDriverOfOneRank, ReportsAnAbort) {
  driver_.abort();
  EXPECT_EQ(driver_.state(), SyncState::abort_due);
  driver_.open(after_one_pass);
  driver_.close("boom", {});
  EXPECT_EQ(driver_.state(), SyncState::abort_closed);
  const SyncResult result = driver_.wait();
  EXPECT_EQ(result.aborted_ranks(), std::vector<int>{0});
  EXPECT_STREQ(result.trailers[0].reason.data(), "boom");
}

TEST_F(SyncDriverOfOneRank, AWriteToABucketInFlightNeedsAnotherSynchronization) {
  driver_.open(after_one_pass);
  driver_.start_buckets(1);
  driver_.prepare_write(0);
  driver_.close("", {});
  EXPECT_TRUE(any_needs_another_sync(driver_.wait().trailers));
}

TEST_F(SyncDriverOfOneRank, KeepsARefusalUntilASynchronizationOrAnAbort) {
  driver_.refuse("because");
  EXPECT_TRUE(driver_.is_refused());
  EXPECT_EQ(driver_.refusal(), "because");
  driver_.open(after_one_pass);
  EXPECT_FALSE(driver_.is_refused());
  driver_.end();
  EXPECT_EQ(driver_.state(), SyncState::idle);
}

}  // namespace
}  // namespace tutti::sync_driver_test
