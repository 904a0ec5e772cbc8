// Evaluation results that differ between ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "support/rank_case.h"
#include "train/error_texts.h"
#include "train/same_results.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/train/callbacks/early_stopping.h"

namespace tutti::test::evaluation_results_test {
namespace {

std::string difference(const std::vector<Scalars>& of_ranks) {
  return message_of<MismatchError>([&] { agreed_results(of_ranks); });
}

TEST(SameResults, EqualResultsAreAccepted) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  agreed_results({{}});
  agreed_results({{}, {}});
  agreed_results({{{"loss", 0.5}, {"accuracy", nan}}, {{"loss", 0.5}, {"accuracy", std::copysign(nan, -1.0)}}});
}

TEST(SameResults, OfResultsThatDifferByRoundingAllRanksTakeThoseOfRank0) {
  EXPECT_EQ(agreed_results({{{"loss", 0.1}}, {{"loss", std::nextafter(0.1, 1)}}}), (Scalars{{"loss", 0.1}}));
  EXPECT_EQ(agreed_results({{{"bias", 1e-9}}, {{"bias", -2e-9}}}), (Scalars{{"bias", 1e-9}}));
}

TEST(SameResults, ADifferenceIsNamedWithItsRanks) {
  expect_says(difference({{{"loss", 0.5}}, {{"loss", 0.5}}, {{"loss", 1}}}),
              "the evaluation result 'loss' is 0.5 on rank 0 and 1 on rank 2. Reduce it over the ranks");
  expect_says(difference({{{"loss", 0.1}}, {{"loss", 0.1001}}}), "is 0.1 on rank 0 and 0.1001 on rank 1");
  expect_says(difference({{{"loss", 1}}, {{"loss", std::numeric_limits<double>::infinity()}}}), "inf on rank 1");
  expect_says(difference({{{"loss", 0.5}}, {{"loss", std::nan("")}}}), "and nan on rank 1");
  expect_says(difference({{{"loss", 0.5}}, {{"accuracy", 0.5}}}),
              "rank 0 returns 'loss' where rank 1 returns 'accuracy'");
  expect_says(difference({{{"loss", 0.5}}, {}}), "rank 1 returns no further one");
  expect_says(difference({{}, {{"loss", 0.5}}}), "rank 0 returns no further one where rank 1 returns 'loss'");
}

// Every rank returns the loss of its own data, and one of them would stop.
const RankCase not_reduced("evaluation_not_reduced", [](const Communicator& communicator) {
  TrainerRun run({.communicator = communicator}, {.max_steps = 6, .evaluate_every = 1});
  double evaluations = 0;
  run.trainer.set_evaluation([&] {
    ++evaluations;
    return Scalars{{"steps", evaluations}, {"loss", evaluations * (run.accelerator.is_last_process() ? 1 : -1)}};
  });
  run.trainer.add_callback(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 1}));
  const std::string message = message_of<MismatchError>([&] { run.trainer.fit(); });
  expect_says(message, "the evaluation result 'loss' is -1 on rank 0 and 1 on rank 1");
  expect_says(message, "accelerator.reduce()");
  EXPECT_EQ(evaluations, 1);
  EXPECT_TRUE(run.trainer.last_evaluation().empty());
  EXPECT_TRUE(run.net->is_training());
});
TEST(SameResults, AnEvaluationThatIsNotReducedIsAnErrorOnAllRanks) {
  not_reduced.on_threads({2});
  not_reduced.on_processes({2});
}

}  // namespace
}  // namespace tutti::test::evaluation_results_test
