#include "tutti/optim/plateau.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "optim/one_rank.h"
#include "optim/reference_curves.h"
#include "tutti/core/error.h"

namespace tutti::plateau_test {
namespace {

using test::OneRank;
using Rates = std::vector<double>;

TEST(ReduceLROnPlateau, EqualsPyTorchs) {
  const std::map<std::string, PlateauOptions> cases = {
      {"by_default", {}},
      {"min_rel", {.factor = 0.5, .patience = 1}},
      {"min_abs", {.factor = 0.5, .patience = 2, .threshold = 0.2, .threshold_mode = ThresholdMode::abs}},
      {"min_cooldown", {.factor = 0.5, .patience = 0, .cooldown = 2}},
      {"min_floor", {.factor = 0.1, .patience = 0, .min_lr = {0.05}}},
      {"min_eps", {.factor = 0.5, .patience = 0, .eps = 0.1}},
      {"max_rel", {.mode = PlateauMode::max, .factor = 0.5, .patience = 1, .threshold = 0.01}},
      {"max_abs",
       {.mode = PlateauMode::max,
        .factor = 0.5,
        .patience = 1,
        .threshold = 0.01,
        .threshold_mode = ThresholdMode::abs}},
  };
  EXPECT_EQ(cases.size(), test::reference_plateaus.size());
  for (const auto& [name, points] : test::reference_plateaus) {
    const OneRank rank;
    Optimizer optimizer = rank.sgd();
    ReduceLROnPlateau plateau(optimizer, cases.at(name));
    for (std::size_t i = 0; i < points.size(); ++i) {
      plateau.step(points[i].metric);
      EXPECT_NEAR(optimizer.learning_rate(), points[i].rate, 1e-12) << name << ", metric number " << i;
    }
  }
}

TEST(ReduceLROnPlateau, HasALowestRateForEachGroup) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({1.0, 1.0});
  ReduceLROnPlateau plateau(optimizer, {.factor = 0.1, .patience = 0, .min_lr = {0.5, 0.01}});
  EXPECT_EQ(plateau.last_rates(), (Rates{1.0, 1.0}));
  plateau.step(1.0);
  plateau.step(1.0);
  EXPECT_EQ(plateau.last_rates(), (Rates{0.5, 0.1}));
}

TEST(ReduceLROnPlateau, StepsOnTheMetricThatTheRanksAgreeOn) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  std::vector<double> own;
  ReduceLROnPlateau plateau(optimizer, {.patience = 0}, [&own](double metric) {
    own.push_back(metric);
    return 4.0;  // the mean over ranks
  });
  plateau.step(3.0);
  EXPECT_EQ(plateau.best(), 4.0);
  plateau.step(2.0);  // better on this rank, worse in the mean
  EXPECT_EQ(own, (std::vector<double>{3.0, 2.0}));
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(), 0.1);
}

TEST(ReduceLROnPlateau, CopiesShareTheirState) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  ReduceLROnPlateau plateau(optimizer, {.patience = 5});
  ReduceLROnPlateau copy = plateau;
  plateau.step(1.0);
  copy.step(1.0);
  EXPECT_EQ(plateau.num_bad_epochs(), 1);
}

TEST(ReduceLROnPlateauState, Resumes) {
  const PlateauOptions options{.factor = 0.5, .patience = 1, .cooldown = 1};
  const std::vector<double> metrics{3, 2, 2, 2, 2, 2, 1.9, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2};
  for (std::size_t stop = 0; stop <= metrics.size(); ++stop) {
    const OneRank rank;
    Optimizer optimizer = rank.sgd();
    ReduceLROnPlateau uninterrupted(optimizer, options);
    for (std::size_t i = 0; i < stop; ++i) uninterrupted.step(metrics[i]);
    const OneRank other;
    Optimizer fresh = other.sgd();
    ReduceLROnPlateau resumed(fresh, options);
    resumed.load_state_dict(uninterrupted.state_dict());
    EXPECT_EQ(resumed.in_cooldown(), uninterrupted.in_cooldown());
    for (std::size_t i = stop; i < metrics.size(); ++i) {
      uninterrupted.step(metrics[i]);
      resumed.step(metrics[i]);
    }
    EXPECT_EQ(fresh.learning_rate(), optimizer.learning_rate()) << "stopped after " << stop;
    EXPECT_EQ(resumed.state_dict().get<std::int64_t>("last_epoch"), static_cast<std::int64_t>(metrics.size()));
  }
}

TEST(ReduceLROnPlateauState, KeepsARateThatWasSetByHand) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  ReduceLROnPlateau plateau(optimizer);
  plateau.step(1.0);
  optimizer.set_learning_rate(0.25);
  plateau.load_state_dict(plateau.state_dict());
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  EXPECT_EQ(plateau.last_rates(), (Rates{0.25}));
}

TEST(ReduceLROnPlateauState, ContainsAGroupThatWasAddedAfterTheLastMetric) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  ReduceLROnPlateau plateau(optimizer);
  optimizer.inner().add_param_group(
      {std::vector<at::Tensor>{at::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(10.0)});
  plateau.load_state_dict(plateau.state_dict());
  EXPECT_EQ(plateau.last_rates(), (Rates{1.0, 10.0}));
}

TEST(ReduceLROnPlateauState, HasPyTorchsNames) {
  const OneRank rank;
  const StateDict state = ReduceLROnPlateau(rank.sgd()).state_dict();
  for (const char* name : {"best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr", "mode"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
}

TEST(ReduceLROnPlateauState, AStateThatDoesNotFitIsRefusedAndChangesNothing) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({0.5});
  ReduceLROnPlateau plateau(optimizer);
  plateau.step(1.5);
  const OneRank other;
  const StateDict of_scores = ReduceLROnPlateau(other.sgd(), {.mode = PlateauMode::max}).state_dict();
  const StateDict of_two_groups = ReduceLROnPlateau(other.sgd({1, 1})).state_dict();
  for (const StateDict& state : {of_scores, of_two_groups, StateDict()}) {
    EXPECT_THROW(plateau.load_state_dict(state), CheckpointError);
    EXPECT_EQ(plateau.best(), 1.5);
    EXPECT_EQ(optimizer.learning_rate(), 0.5);
  }
}

TEST(ReduceLROnPlateau, RefusesOptionsOutOfRange) {
  const OneRank rank;
  const auto refused = [&](const PlateauOptions& options) {
    EXPECT_THROW(ReduceLROnPlateau(rank.sgd(), options), UsageError);
  };
  refused({.factor = 1.0});
  refused({.factor = -0.1});
  refused({.patience = -1});
  refused({.threshold = test::nan});
  refused({.cooldown = -1});
  refused({.min_lr = {}});
  refused({.min_lr = {0.1, 0.1}});
  refused({.min_lr = {-1.0}});
  refused({.eps = -1});
}

}  // namespace
}  // namespace tutti::plateau_test
