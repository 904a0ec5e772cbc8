// accumulate(): the gradient is the mean over the window's micro-batches, on any number of ranks as on one process.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::accumulate_test {
namespace {

/// The gradient of sum(weight_i * loss_i) / sum(weight_i) over micro-batches [first, first + count).
void backward_of_mean(Mlp& model, std::int64_t first, std::int64_t count,
                      const std::function<double(std::int64_t)>& weight, at::ScalarType dtype = at::kFloat) {
  double total = 0;
  for (std::int64_t i = first; i < first + count; ++i) total += weight(i);
  for (std::int64_t i = first; i < first + count; ++i) {
    const Batch batch = batch_of(i, dtype);
    (loss_of(model->forward(batch.input), batch.target) * (weight(i) / total)).backward();
  }
}

double one(std::int64_t) {
  return 1.0;
}

void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto values = from.parameters();
  auto targets = to.parameters();
  for (std::size_t i = 0; i < values.size(); ++i) targets[i].copy_(values[i]);
}

/// A dataset whose sample i is the micro-batch i.
struct Micro {
  std::int64_t count;
  std::vector<std::int64_t> get_batch(const std::vector<std::size_t>& indices) const {
    return {indices.begin(), indices.end()};
  }
  std::size_t size() const { return static_cast<std::size_t>(count); }
};

// test_sync.py, case 4: gradients equal the reference exactly on a window's last micro-batch, the short last window
// included, or on each micro-batch with sync_each_batch. They are the mean over the window's micro-batches.
void check_accumulate(const Communicator& communicator, bool sync_each_batch) {
  const std::int64_t ranks = communicator.size();
  Accelerator accelerator(
      {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 2, .sync_each_batch = sync_each_batch},
       .communicator = communicator});
  Mlp reference;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Micro{5 * ranks}, {.batch_size = 1});
  std::int64_t step = 0;
  std::int64_t window_begin = 0;
  for (const auto& indices : loader) {
    const auto window = accelerator.accumulate(model);
    const Batch batch = batch_of(indices[0]);
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    ++step;
    const bool last = step % 2 == 0 || step == 5;
    EXPECT_EQ(accelerator.sync_gradients(), last) << "step " << step;

    reference->zero_grad();
    backward_of_mean(reference, window_begin * ranks, (step - window_begin) * ranks, one);
    const bool equal = close(gradients_of(*model), gradients_of(*reference));
    EXPECT_EQ(equal, last || sync_each_batch || (ranks == 1 && step - window_begin == 1)) << "step " << step;
    optimizer.step();
    optimizer.zero_grad();
    if (last) {
      window_begin = step;
      copy_parameters(*model, *reference);
    }
  }
  EXPECT_EQ(step, 5);
  EXPECT_EQ(accelerator.stats().syncs, sync_each_batch ? 5 : 3);
}

const RankCase accumulate_synchronizes("accumulate_synchronizes",
                                       [](const Communicator& communicator) { check_accumulate(communicator, false); });
TEST(Accumulate, SynchronizesAtTheWindowsEndAndAtTheEndOfTheData) {
  accumulate_synchronizes.everywhere();
}

const RankCase accumulate_each_batch("accumulate_each_batch",
                                     [](const Communicator& communicator) { check_accumulate(communicator, true); });
TEST(Accumulate, SyncEachBatchSynchronizesAlways) {
  accumulate_each_batch.everywhere();
}

/// Trains 6 windows and compares with one process. `dtype` and `optimizer_of` choose the arithmetic.
template <typename MakeOptimizer>
void check_parity(const Communicator& communicator, at::ScalarType dtype, const MakeOptimizer& optimizer_of,
                  double tolerance) {
  const std::int64_t ranks = communicator.size();
  constexpr std::int64_t steps = 3;
  Accelerator accelerator({.gradient_accumulation_steps = steps, .communicator = communicator});
  Mlp reference(1, dtype);
  Mlp net(1, dtype);
  auto reference_optimizer = optimizer_of(reference->parameters());
  auto [model, optimizer] = accelerator.prepare(net, optimizer_of(net->parameters()));
  // Micro-batches are distributed so that weights differ between ranks and passes.
  const auto weight = [](std::int64_t index) { return 1.0 + static_cast<double>(index % 5); };
  for (std::int64_t window = 0; window < 6; ++window) {
    const std::int64_t first = window * steps * ranks;
    backward_of_mean(reference, first, steps * ranks, weight, dtype);
    for (std::int64_t pass = 0; pass < steps; ++pass) {
      const std::int64_t index = first + pass * ranks + communicator.rank();
      const auto scope = accelerator.accumulate(model, {.weight = weight(index)});
      const Batch batch = batch_of(index, dtype);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target) * weight(index));
      if (accelerator.sync_gradients()) {
        EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference), tolerance));
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    reference_optimizer.step();
    reference_optimizer.zero_grad();
    EXPECT_TRUE(close(model->parameters(), reference->parameters(), tolerance)) << "window " << window;
  }
}

const RankCase parity_sgd("parity_sgd", [](const Communicator& communicator) {
  check_parity(
      communicator, at::kFloat, [](const auto& parameters) { return torch::optim::SGD(parameters, 0.05); }, 1e-6);
});
TEST(Accumulate, EqualsOneProcessUnderSgdInFp32) {
  parity_sgd.everywhere();
}

const RankCase parity_adamw("parity_adamw", [](const Communicator& communicator) {
  check_parity(
      communicator, at::kDouble, [](const auto& parameters) { return torch::optim::AdamW(parameters, 0.01); }, 1e-6);
});
TEST(Accumulate, EqualsOneProcessUnderAdamWInFp64) {
  parity_adamw.everywhere();
}

const RankCase two_losses("two_losses", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp reference;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (std::int64_t pass = 0; pass < 2; ++pass) {
    for (std::int64_t rank = 0; rank < communicator.size(); ++rank) {
      const Batch batch = batch_of(pass * communicator.size() + rank);
      const at::Tensor output = reference->forward(batch.input);
      ((loss_of(output, batch.target) + output.pow(2).mean()) / (2.0 * communicator.size())).backward();
    }
    const auto scope = accelerator.accumulate(model);
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    const at::Tensor output = model->forward(batch.input);
    const bool one_graph = pass == 0;
    accelerator.backward(loss_of(output, batch.target).clone(), /*retain_graph=*/one_graph);
    accelerator.backward((one_graph ? output : model->forward(batch.input)).pow(2).mean());
  }
  EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference)));
});
TEST(Accumulate, TwoLossesInOneScopeWeighOnce) {
  two_losses.everywhere();
}

const RankCase two_models("two_models", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp reference_a(1), reference_b(2), net_a(1), net_b(2);
  auto [a, b, optimizer_a, optimizer_b] = accelerator.prepare(net_a, net_b, torch::optim::SGD(net_a->parameters(), 0.1),
                                                              torch::optim::SGD(net_b->parameters(), 0.1));
  torch::optim::SGD reference_optimizer_a(reference_a->parameters(), 0.1);
  torch::optim::SGD reference_optimizer_b(reference_b->parameters(), 0.1);
  for (std::int64_t window = 0; window < 2; ++window) {
    const std::int64_t first = window * 2 * communicator.size();
    backward_of_mean(reference_a, first, 2 * communicator.size(), one);
    backward_of_mean(reference_b, first, 2 * communicator.size(), one);
    for (std::int64_t pass = 0; pass < 2; ++pass) {
      const auto scope = accelerator.accumulate(a, b);
      const Batch batch = batch_of(first + pass * communicator.size() + communicator.rank());
      // Ranks run the two models in different orders: autograd runs backward in the reverse order of forward.
      const bool a_first = communicator.rank() % 2 == 0;
      const auto loss = [&batch](Mlp& net) { return loss_of(net->forward(batch.input), batch.target); };
      const at::Tensor first_loss = loss(a_first ? net_a : net_b);
      accelerator.backward(first_loss + loss(a_first ? net_b : net_a));
      optimizer_a.step();
      optimizer_b.step();
      optimizer_a.zero_grad();
      optimizer_b.zero_grad();
    }
    reference_optimizer_a.step();
    reference_optimizer_b.step();
    reference_optimizer_a.zero_grad();
    reference_optimizer_b.zero_grad();
    EXPECT_TRUE(close(a->parameters(), reference_a->parameters())) << "window " << window;
    EXPECT_TRUE(close(b->parameters(), reference_b->parameters())) << "window " << window;
  }
});
TEST(Accumulate, TwoModelsInOneScope) {
  two_models.everywhere();
}

// A GAN's loop: each model has its own windows, in any order of the scopes.
const RankCase alternating_models("alternating_models", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net_a(1), net_b(2);
  auto [a, b, optimizer_a, optimizer_b] = accelerator.prepare(net_a, net_b, torch::optim::SGD(net_a->parameters(), 0.1),
                                                              torch::optim::SGD(net_b->parameters(), 0.1));
  for (int pass = 0; pass < 4; ++pass) {
    const Batch batch = batch_of(communicator.rank());
    {
      const auto scope = accelerator.accumulate(a);
      EXPECT_EQ(accelerator.sync_gradients(), pass % 2 == 1);
      accelerator.backward(loss_of(a->forward(batch.input), batch.target));
    }
    const auto scope = accelerator.accumulate(b);
    EXPECT_EQ(accelerator.sync_gradients(), pass % 2 == 1);
    accelerator.backward(loss_of(b->forward(batch.input), batch.target));
  }
  EXPECT_EQ(accelerator.stats().syncs, 4);
});
TEST(Accumulate, ModelsInSeparateScopesCountTheirOwnWindows) {
  alternating_models.everywhere();
}

// The loss of one rank uses no parameter in the synchronizing micro-batch. The rank still takes part.
void check_untouched(const Communicator& communicator, bool steps) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp reference;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const std::int64_t ranks = communicator.size();
  for (std::int64_t pass = 0; pass < 2; ++pass) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      if (pass == 1 && rank == 0) continue;
      const Batch batch = batch_of(pass * ranks + rank);
      (loss_of(reference->forward(batch.input), batch.target) / (2.0 * static_cast<double>(ranks))).backward();
    }
    const auto scope = accelerator.accumulate(model);
    if (pass == 1 && communicator.rank() == 0) {
      accelerator.backward(at::ones({}).requires_grad_());
    } else {
      const Batch batch = batch_of(pass * ranks + communicator.rank());
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    }
    if (steps) optimizer.step();
  }
  EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference)));
}

const RankCase untouched("untouched", [](const Communicator& communicator) { check_untouched(communicator, true); });
TEST(Accumulate, ALossThatTouchesNoParameterStillTakesPart) {
  untouched.everywhere();
}

// Without a step, the scope's end completes the synchronization.
const RankCase completed_by_scope("completed_by_scope",
                                  [](const Communicator& communicator) { check_untouched(communicator, false); });
TEST(Accumulate, TheScopesEndCompletesTheSync) {
  completed_by_scope.everywhere();
}

// Rank 1 skips a micro-batch by an exception before backward. The mean is over the micro-batches that ran backward.
const RankCase skipped("skipped", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 3, .communicator = communicator});
  Mlp reference;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const std::int64_t ranks = communicator.size();
  const auto skips = [](std::int64_t pass, std::int64_t rank) { return pass == 1 && rank == 1; };
  const double done = 3.0 * static_cast<double>(ranks) - (ranks > 1 ? 1 : 0);
  for (std::int64_t pass = 0; pass < 3; ++pass) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      if (skips(pass, rank)) continue;
      const Batch batch = batch_of(pass * ranks + rank);
      (loss_of(reference->forward(batch.input), batch.target) / done).backward();
    }
    try {
      const auto scope = accelerator.accumulate(model);
      const Batch batch = batch_of(pass * ranks + communicator.rank());
      const at::Tensor loss = loss_of(model->forward(batch.input), batch.target);
      if (skips(pass, communicator.rank())) throw std::runtime_error("bad sample");
      accelerator.backward(loss);
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "bad sample");
    }
  }
  EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference)));
});
TEST(Accumulate, AnExceptionBeforeBackwardLeavesTheMicroBatchOut) {
  skipped.everywhere();
}

// Rank 1 throws in the scope that ends the step: the other ranks throw PeerError, and the next step works.
TEST(Accumulate, AnExceptionInTheSynchronizingScopeIsReportedToPeers) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
    Mlp net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const auto micro_batch = [&](bool explode) {
      const auto scope = accelerator.accumulate(model);
      const Batch batch = batch_of(communicator.rank());
      const at::Tensor loss = loss_of(model->forward(batch.input), batch.target);
      if (explode) throw std::runtime_error("bad sample");
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    };
    micro_batch(false);
    if (communicator.rank() == 1) {
      EXPECT_THROW(micro_batch(true), std::runtime_error);
    } else {
      try {
        micro_batch(false);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const PeerError& failure) {
        EXPECT_EQ(failure.ranks(), std::vector<int>{1}) << failure.what();
      }
    }
    micro_batch(false);
    micro_batch(false);
    Mlp first_rank;
    for (const at::Tensor& parameter : model->parameters()) {
      const at::Tensor copy = parameter.detach().clone();
      communicator.broadcast(copy).wait();
      EXPECT_TRUE(at::equal(copy, parameter));
    }
  });
}

TEST(Accumulate, MixingWithPlainPassesIsRefused) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const Batch batch = batch_of(0);
  const auto pass = [&, &used = model] { accelerator.backward(loss_of(used->forward(batch.input), batch.target)); };
  {
    const auto scope = accelerator.accumulate(model);
    pass();
  }
  EXPECT_THROW(pass(), UsageError);
}

TEST(Accumulate, RefusesWeightsThatAreNoWeights) {
  Accelerator accelerator({.gradient_accumulation_steps = 1, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_THROW((void)accelerator.accumulate(model, {.weight = -1}), UsageError);
  EXPECT_THROW((void)accelerator.accumulate(model, {.weight = std::numeric_limits<double>::quiet_NaN()}), UsageError);
  auto scope = std::make_optional(accelerator.accumulate(model, {.weight = 0}));
  const Batch batch = batch_of(0);
  EXPECT_THROW(accelerator.backward(loss_of(model->forward(batch.input), batch.target)), MismatchError);
}

TEST(Accumulate, ForgettingZeroGradIsRefused) {
  Accelerator accelerator({.gradient_accumulation_steps = 1, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const Batch batch = batch_of(0);
  const auto micro_batch = [&, &used = model, &stepper = optimizer] {
    const auto scope = accelerator.accumulate(used);
    accelerator.backward(loss_of(used->forward(batch.input), batch.target));
    stepper.step();
  };
  micro_batch();
  EXPECT_THROW(micro_batch(), UsageError);
}

}  // namespace
}  // namespace tutti::test::accumulate_test
