#include "sync/gradient_store.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::gradient_store_test {
namespace {

using sync::ExternalClear;
using sync::GradientStore;
using sync::ParameterSet;

/// Two dense parameters in one bucket, on one rank.
class GradientStoreOfOneRank : public testing::Test {
 protected:
  void set_gradient(int parameter, double value) {
    const at::Tensor& tensor = parameters_.trained[parameter].tensor;
    tensor.mutable_grad() = at::full_like(tensor, value);
    store_.on_gradient(parameter);
  }
  at::Tensor gradient(int parameter) const { return parameters_.trained[parameter].tensor.grad(); }
  double value(int parameter) const { return gradient(parameter)[0].item<double>(); }
  /// Makes the bucket hold the mean for `total_weight`.
  void set_mean(double total_weight) {
    store_.fill_bucket(0);
    store_.set_mean(total_weight, 1, store_.take_used(), {});
  }
  /// A window with one pending pass.
  static Window pending_window(bool weighted = false) {
    Window window;
    weighted ? window.begin_weighted_pass() : window.begin_plain_pass();
    window.add_pending();
    return window;
  }

  ParameterSet parameters_{{{.name = "weight", .tensor = at::zeros({3}).requires_grad_()},
                            {.name = "bias", .tensor = at::zeros({2}).requires_grad_()}}};
  Communicator communicator_;
  GradientStore store_{parameters_, {}, communicator_};
  const at::NoGradGuard no_grad_;
};

TEST_F(GradientStoreOfOneRank, FillsABucketWithGradientsAndZeros) {
  set_gradient(1, 5);
  set_gradient(0, 2);
  parameters_.trained[1].tensor.mutable_grad().reset();
  EXPECT_EQ(store_.bucket_count(), 1);
  EXPECT_EQ(store_.fill_bucket(0).sum().item<double>(), 6);
  EXPECT_EQ(store_.take_used(), (std::vector<bool>{true, false}));
}

TEST_F(GradientStoreOfOneRank, APassConvertsAMeanToALocalShareOnce) {
  set_gradient(0, 2);
  store_.set_loss_scale(8, false);
  set_mean(3);
  EXPECT_EQ(value(0), 2);
  store_.to_local_share(1);
  EXPECT_EQ(value(0), 48);
  store_.to_local_share(0);
  EXPECT_EQ(value(0), 48);
}

TEST_F(GradientStoreOfOneRank, ABucketThatWasWrittenInFlightHoldsALocalShare) {
  set_gradient(0, 2);
  store_.fill_bucket(0);
  EXPECT_FALSE(store_.any_written_in_flight());
  store_.to_local_share_in_flight(0, 3);
  EXPECT_TRUE(store_.any_written_in_flight());
  store_.set_mean(5, 1, store_.take_used(), {});
  EXPECT_FALSE(store_.any_written_in_flight());
  store_.to_local_share(0);
  EXPECT_EQ(value(0), 6);
}

TEST_F(GradientStoreOfOneRank, RescalesLocalSharesButNoMean) {
  set_gradient(0, 2);
  store_.record(true);
  store_.set_loss_scale(4, true);
  EXPECT_EQ(value(0), 8);
  EXPECT_EQ(store_.find_external_clear(pending_window(), true), ExternalClear::none);
  set_mean(1);
  store_.set_loss_scale(16, true);
  EXPECT_EQ(value(0), 8);
}

TEST_F(GradientStoreOfOneRank, DetectsChangesAndClearings) {
  set_gradient(0, 2);
  set_gradient(1, 2);
  store_.record(true);
  EXPECT_EQ(store_.find_external_clear(pending_window(), true), ExternalClear::none);
  gradient(0).data().mul_(2);
  EXPECT_THROW(store_.find_external_clear(pending_window(), true), UsageError);
  EXPECT_EQ(store_.find_external_clear(pending_window(), false), ExternalClear::none);
  gradient(0).zero_();
  gradient(1).zero_();
  EXPECT_EQ(store_.find_external_clear(pending_window(), true), ExternalClear::zeroed);
  parameters_.trained[0].tensor.mutable_grad().reset();
  EXPECT_THROW(store_.find_external_clear(pending_window(true), true), UsageError);
  parameters_.trained[1].tensor.mutable_grad().reset();
  EXPECT_EQ(store_.find_external_clear(pending_window(true), true), ExternalClear::released);
  EXPECT_EQ(store_.tracked(), std::nullopt);
}

TEST_F(GradientStoreOfOneRank, NamesForeignGradients) {
  EXPECT_NO_THROW(store_.require_known(true));
  set_gradient(0, 2);
  EXPECT_EQ(store_.foreign(true), std::nullopt);
  parameters_.trained[0].tensor.mutable_grad() = at::ones({3});
  EXPECT_EQ(store_.foreign(true), "'weight'");
  EXPECT_EQ(store_.foreign(false), std::nullopt);
  EXPECT_THROW(store_.require_known(true), UsageError);
}

TEST_F(GradientStoreOfOneRank, RestoresItsState) {
  set_gradient(0, 2);
  set_mean(3);
  StateDict saved;
  store_.save(saved);
  const StateDict state = copy_to_cpu(saved);
  store_.discard();
  EXPECT_FALSE(gradient(0).defined());
  store_.check_state(state);
  store_.load(state);
  EXPECT_EQ(value(0), 2);
  store_.to_local_share(0);
  EXPECT_EQ(value(0), 6);
  StateDict damaged = state;
  damaged.set("gradient.other", at::ones({1}));
  EXPECT_THROW(store_.check_state(damaged), CheckpointError);
}

TEST(GradientStore, HoldsMicroBatchesOnlyIfSumsAreReproducible) {
  const ParameterSet parameters({{.name = "weight", .tensor = at::zeros({3}).requires_grad_()}});
  const Communicator communicator;
  GradientStore store(parameters, {.reproducible = true}, communicator);
  const at::NoGradGuard no_grad;
  parameters.trained[0].tensor.mutable_grad() = at::ones({3});
  store.accumulate_micro_batch();
  EXPECT_EQ(store.micro_batches(), 1);
  EXPECT_FALSE(parameters.trained[0].tensor.grad().defined());
  EXPECT_EQ(store.fill_bucket(0).sum().item<double>(), 3);
  EXPECT_EQ(store.take_used(), std::vector<bool>{true});
  EXPECT_EQ(store.micro_batches(), 0);
}

}  // namespace
}  // namespace tutti::gradient_store_test
