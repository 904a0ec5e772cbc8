// discard_accumulation(): a loop leaves an accumulation early and continues as if the window had not begun.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::discard_accumulation_test {
namespace {

constexpr std::int64_t steps = 3;

/// A model in training, and an equal model on one process over the micro-batches of all ranks.
struct Run {
  explicit Run(const Communicator& communicator, SyncPolicy policy = SyncPolicy::automatic)
      : ranks(communicator.size()),
        rank(communicator.rank()),
        accelerator({.gradient_accumulation_steps = steps, .sync_policy = policy, .communicator = communicator}),
        optimizer(std::get<1>(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1)))) {}

  static double weight_of(std::int64_t index) { return 1.0 + static_cast<double>(index % 5); }
  static at::Tensor loss(Mlp& model, std::int64_t index) {
    const Batch batch = batch_of(index);
    return loss_of(model->forward(batch.input), batch.target);
  }
  /// The next micro-batch of this rank.
  std::int64_t next() { return ranks * passes++ + rank; }
  /// A micro-batch in its own scope.
  void micro_batch() {
    const std::int64_t index = next();
    const auto scope = accelerator.accumulate(net, {.weight = weight_of(index)});
    accelerator.backward(loss(net, index) * weight_of(index));
    optimizer.step();
    optimizer.zero_grad();
  }
  /// One process steps on the last `count` micro-batches of all ranks.
  void step_alone(bool weighted, std::int64_t count = steps) {
    double total = 0;
    for (std::int64_t i = ranks * (passes - count); i < ranks * passes; ++i) total += weighted ? weight_of(i) : 1;
    for (std::int64_t i = ranks * (passes - count); i < ranks * passes; ++i) {
      (loss(alone, i) * (weighted ? weight_of(i) : 1) / total).backward();
    }
    alone_optimizer.step();
    alone_optimizer.zero_grad();
  }
  void expect_equal() { EXPECT_TRUE(close(net->parameters(), alone->parameters())) << "after " << passes << " passes"; }

  std::int64_t ranks;
  std::int64_t rank;
  std::int64_t passes = 0;
  Mlp alone;
  torch::optim::SGD alone_optimizer{alone->parameters(), 0.1};
  Mlp net;
  Accelerator accelerator;
  Optimizer optimizer;
};

void check_plain_loop(const Communicator& communicator, SyncPolicy policy) {
  Run run(communicator, policy);
  for (const int broken_off : {0, 1, 2, 0, 0, 1}) {
    for (int pass = 0; pass < broken_off; ++pass) run.accelerator.backward(Run::loss(run.net, run.next()));
    if (broken_off > 0) run.accelerator.discard_accumulation(run.net);
    for (std::int64_t pass = 0; pass < steps; ++pass) run.accelerator.backward(Run::loss(run.net, run.next()));
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.step_alone(false);
    run.expect_equal();
  }
}

const RankCase plain_loop("abandon_plain_loop", [](const Communicator& communicator) {
  check_plain_loop(communicator, SyncPolicy::automatic);
  check_plain_loop(communicator, SyncPolicy::every_pass);
});
TEST(DiscardAccumulation, APlainLoopGoesOnAsIfTheWindowHadNotBegun) {
  plain_loop.on_threads({1, 2, 3});
}

const RankCase between_scopes("abandon_between_scopes", [](const Communicator& communicator) {
  Run run(communicator);
  for (const int broken_off : {0, 1, 2, 0, 2}) {
    for (int scope = 0; scope < broken_off; ++scope) run.micro_batch();
    if (broken_off > 0) run.accelerator.discard_accumulation(run.net);
    for (std::int64_t scope = 0; scope < steps; ++scope) {
      run.micro_batch();
      EXPECT_EQ(run.accelerator.sync_gradients(), scope == steps - 1) << "scopes are counted from 0 again";
    }
    run.step_alone(true);
    run.expect_equal();
  }
});
TEST(DiscardAccumulation, BetweenScopesItDropsGradientsWeightsAndTheCountOfScopes) {
  between_scopes.everywhere();
}

// As in Accelerate, whose zero_grad() does not reset the count of micro-batches.
const RankCase zero_grad_between_scopes("zero_grad_between_scopes", [](const Communicator& communicator) {
  Run run(communicator);
  for (const int broken_off : {0, 1, 2, 0, 2}) {
    for (int scope = 0; scope < broken_off; ++scope) run.micro_batch();
    run.optimizer.zero_grad();
    for (std::int64_t scope = broken_off; scope < steps; ++scope) {
      run.micro_batch();
      EXPECT_EQ(run.accelerator.sync_gradients(), scope == steps - 1) << "the count of scopes continues";
    }
    run.step_alone(true, steps - broken_off);
    run.expect_equal();
  }
});
TEST(DiscardAccumulation, ZeroGradBetweenScopesDropsGradientsAndWeightsButNotTheCountOfScopes) {
  zero_grad_between_scopes.everywhere();
}

// The loop discards the window within a scope: in an earlier scope of the window, or in the last one, whose gradients
// are synchronized already.
const RankCase in_a_scope("abandon_in_a_scope", [](const Communicator& communicator) {
  Run run(communicator);
  for (const int leaves_in : {1, 2, 3}) {
    for (int scope = 1; scope <= leaves_in; ++scope) {
      const std::int64_t index = run.next();
      const auto window = run.accelerator.accumulate(run.net, {.weight = 7});
      run.accelerator.backward(Run::loss(run.net, index));
      if (scope < leaves_in) continue;
      EXPECT_EQ(run.accelerator.sync_gradients(), scope == steps);
      run.accelerator.discard_accumulation(run.net);
      for (const at::Tensor& parameter : run.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      break;
    }
    for (std::int64_t scope = 0; scope < steps; ++scope) {
      run.micro_batch();
      EXPECT_EQ(run.accelerator.sync_gradients(), scope == steps - 1) << "scopes are counted from 0 again";
    }
    run.step_alone(true);
    run.expect_equal();
  }
});
TEST(DiscardAccumulation, InAScopeItDropsTheSame) {
  in_a_scope.everywhere();
}

const RankCase of_one_model("abandon_of_one_model", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp dropped(1), kept(2);
  auto [a, b, a_optimizer, b_optimizer] = accelerator.prepare(
      dropped, kept, torch::optim::SGD(dropped->parameters(), 0.1), torch::optim::SGD(kept->parameters(), 0.1));
  const auto micro_batch = [&, &a = a, &b = b](bool first) {
    const auto scope = accelerator.accumulate(a, b);
    accelerator.backward((Run::loss(a, 0) + Run::loss(b, 0)) * (first ? 3.0 : 1.0));
    return accelerator.sync_gradients();
  };
  EXPECT_FALSE(micro_batch(true));
  accelerator.discard_accumulation(a);
  EXPECT_FALSE(micro_batch(false));  // the last micro-batch of b's window, the first of a's
  EXPECT_EQ(a_optimizer.reducer()->stats().syncs, 0);
  EXPECT_EQ(b_optimizer.reducer()->stats().syncs, 1);

  Mlp alone(2);
  (Run::loss(alone, 0) * 2).backward();
  EXPECT_TRUE(close(gradients_of(*b), gradients_of(*alone)));
});
TEST(DiscardAccumulation, OtherModelsWindowsStay) {
  of_one_model.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::discard_accumulation_test
