// prepare(), options and helpers.
#include "tutti/train/accelerator.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <optional>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"

namespace tutti::test::accelerator_test {
namespace {

struct Numbers {
  std::int64_t count;
  std::vector<std::int64_t> get_batch(const std::vector<std::size_t>& indices) const {
    return {indices.begin(), indices.end()};
  }
  std::size_t size() const { return static_cast<std::size_t>(count); }
};

TEST(Accelerator, RefusesContradictingOptions) {
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 0, .communicator = Communicator()}), UsageError);
  EXPECT_THROW(Accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = -3},
                            .communicator = Communicator()}),
               UsageError);
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 2,
                            .gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 4},
                            .communicator = Communicator()}),
               UsageError);
}

TEST(Accelerator, PrepareReturnsTheSameModelAndOwnsRvalueOptimizers) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto owned = std::make_unique<torch::optim::AdamW>(net->parameters(), 0.5);
  auto [optimizer, model, scheduler] = accelerator.prepare(std::move(owned), net, cosine_with_warmup(2, 4));
  EXPECT_EQ(&model, &net);
  EXPECT_EQ(optimizer.learning_rate(), 0.0);  // the schedule's position 0
  optimizer.step();
  scheduler.step();
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(), 0.25);
}

TEST(Accelerator, PrepareOfASingleObject) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model] = accelerator.prepare(net);
  const Mlp unchanging = net;
  static_assert(std::same_as<decltype(accelerator.prepare(unchanging)), std::tuple<const Mlp&>>);
  EXPECT_EQ(&model, &net);
  const Batch batch = batch_of(0);
  accelerator.backward(loss_of(model->forward(batch.input), batch.target));
  EXPECT_EQ(accelerator.stats().syncs, 1);
  // The optimizer may be prepared later. Its reducer then owns the gradients.
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [optimizer] = accelerator.prepare(sgd);
  EXPECT_EQ(&optimizer.inner(), &sgd);
}

TEST(Accelerator, RefusesAnOptimizerOutsideTheModelsAndAScheduleWithoutOptimizer) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net, other;
  EXPECT_THROW(accelerator.prepare(net, torch::optim::SGD(other->parameters(), 0.1)), UsageError);
  EXPECT_THROW(accelerator.prepare(net, cosine_with_warmup(0, 1)), UsageError);
  EXPECT_THROW((void)accelerator.accumulate(other), UsageError);
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_THROW(accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1)), UsageError);
}

const RankCase replicates("replicates", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net(10 + static_cast<std::uint64_t>(communicator.rank()));
  Mlp first_rank(10);
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  if (communicator.rank() == 0) {
    const Batch batch = batch_of(0);
    loss_of(net->forward(batch.input), batch.target).backward();
    adamw.step();
    adamw.zero_grad();
    first_rank = net;
  }
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  EXPECT_EQ(optimizer.inner().state().size(), 4U);
  for (const at::Tensor& parameter : model->parameters()) {
    const at::Tensor copy = parameter.detach().clone();
    communicator.broadcast(copy).wait();
    EXPECT_TRUE(at::equal(copy, parameter));
  }
});
TEST(Accelerator, PrepareMakesModelAndOptimizerThoseOfRank0) {
  replicates.everywhere();
}

// The state of an optimizer that has stepped follows its parameters.
const RankCase prepared_again("prepared_again", [](const Communicator& communicator) {
  Mlp net;
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  Accelerator accelerator({.communicator = communicator});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto train = [&, &optimizer = optimizer](at::ScalarType dtype) {
    for (int step = 0; step < 3; ++step) {
      const Batch batch = batch_of(communicator.rank(), dtype);
      accelerator.backward(loss_of(net->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  train(at::kFloat);
  net->to(at::kBFloat16);
  accelerator.prepare(net, optimizer);
  train(at::kBFloat16);
  for (const at::Tensor& parameter : net->parameters()) {
    const auto& state =
        dynamic_cast<const torch::optim::AdamWParamState&>(*adamw.state().at(parameter.unsafeGetTensorImpl()));
    for (const at::Tensor& tensor : {state.exp_avg(), state.exp_avg_sq(), parameter.detach()}) {
      EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
      const at::Tensor copy = tensor.clone();
      communicator.broadcast(copy).wait();
      EXPECT_TRUE(at::equal(copy, tensor));
    }
  }
});
TEST(Accelerator, PreparingAgainConvertsTheOptimizersStateOnAllRanks) {
  prepared_again.everywhere();
}

const RankCase two_accelerators("two_accelerators", [](const Communicator& communicator) {
  Accelerator first({.gradient_accumulation_steps = 2, .communicator = communicator});
  Accelerator second({.communicator = communicator});
  EXPECT_EQ(first.gradient_accumulation_steps(), 2);  // a second Accelerator does not change the first one
  Mlp net_a, net_b;
  auto [a, optimizer_a] = first.prepare(net_a, torch::optim::SGD(net_a->parameters(), 0.1));
  auto [b, optimizer_b] = second.prepare(net_b, torch::optim::SGD(net_b->parameters(), 0.1));
  for (int pass = 0; pass < 2; ++pass) {
    const Batch batch = batch_of(communicator.rank());
    const auto window_a = first.accumulate(a);
    const auto window_b = second.accumulate(b);
    EXPECT_EQ(first.sync_gradients(), pass == 1);
    EXPECT_TRUE(second.sync_gradients());
    first.backward(loss_of(a->forward(batch.input), batch.target));
    second.backward(loss_of(b->forward(batch.input), batch.target));
    optimizer_a.step();
    optimizer_b.step();
    optimizer_a.zero_grad();
    optimizer_b.zero_grad();
  }
  EXPECT_EQ(first.stats().syncs, 1);
  EXPECT_EQ(second.stats().syncs, 2);
});
TEST(Accelerator, TwoOfThemAreIndependent) {
  two_accelerators.everywhere();
}

// test_sync.py, case 6, with the break that the case's name announces.
TEST(Accelerator, NestedLoadersAndBreakLeaveTheOuterWindowAlone) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto outer = accelerator.data_loader(Numbers{5}, {.batch_size = 1});
  auto inner = accelerator.data_loader(Numbers{3}, {.batch_size = 1});
  std::vector<bool> synchronized;
  for (const auto& indices : outer) {
    for (const auto& inner_indices : inner) {
      if (inner_indices[0] == 1 && indices[0] % 2 == 0) break;
    }
    const auto window = accelerator.accumulate(model);
    synchronized.push_back(accelerator.sync_gradients());
    const Batch batch = batch_of(indices[0]);
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(synchronized, (std::vector<bool>{false, true, false, true, true}));
}

TEST(Accelerator, SyncWithDataloaderOffLetsWindowsCrossEpochs) {
  Accelerator accelerator(
      {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 2, .sync_with_dataloader = false},
       .communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Numbers{3}, {.batch_size = 1});
  std::vector<bool> synchronized;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& indices : loader) {
      const auto window = accelerator.accumulate(model);
      synchronized.push_back(accelerator.sync_gradients());
      const Batch batch = batch_of(indices[0]);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(synchronized, (std::vector<bool>{false, true, false, true, false, true}));
}

// test_sync.py, case 5: the schedule steps with the optimizer or with micro-batches, as adjust_scheduler decides.
void check_schedule(ScheduleRule rule, const std::vector<double>& rates) {
  Accelerator accelerator(
      {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 2, .schedule_rule = rule},
       .communicator = Communicator()});
  Mlp net;
  const LrSchedule halves = [](std::int64_t position) { return std::pow(0.5, static_cast<double>(position)); };
  auto [model, optimizer, scheduler] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1.0), halves);
  std::vector<double> seen;
  for (int pass = 0; pass < 4; ++pass) {
    const auto window = accelerator.accumulate(model);
    const Batch batch = batch_of(pass);
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    seen.push_back(optimizer.learning_rate());
  }
  EXPECT_EQ(seen, rates);
}
TEST(Accelerator, SchedulesCountOptimizerSteps) {
  check_schedule(ScheduleRule::optimizer_step, {1, 0.5, 0.5, 0.25});
}
TEST(Accelerator, AdjustSchedulerCountsMicroBatches) {
  check_schedule(ScheduleRule::accelerate_micro_batch, {1, 0.25, 0.25, 0.0625});
}

// Metrics differ between ranks, and the learning rates stay equal.
const RankCase plateau("plateau", [](const Communicator& communicator) {
  std::optional<Accelerator> accelerator(AcceleratorOptions{.communicator = communicator});
  Mlp net;
  auto [model, optimizer, scheduler] = accelerator->prepare(net, torch::optim::SGD(net->parameters(), 1.0),
                                                            PlateauOptions{.factor = 0.5, .patience = 0});
  accelerator.reset();  // prepared objects may be used without it
  // Better on rank 0, worse in the mean.
  const bool first = communicator.rank() == 0;
  scheduler.step(1.0);
  scheduler.step(first ? 0.9 : 10.0);
  EXPECT_EQ(optimizer.learning_rate(), communicator.size() == 1 ? 1.0 : 0.5);
});
TEST(Accelerator, PreparesAPlateauScheduleOnTheMeanOverRanks) {
  plateau.on_threads({1, 2, 3});
}

const RankCase clips("clips", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int pass = 0; pass < 2; ++pass) {
    const auto window = accelerator.accumulate(model);
    const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    const auto norm = accelerator.clip_grad_norm_(model, 0.01);
    EXPECT_EQ(norm.has_value(), pass == 1);
    if (!norm) continue;
    EXPECT_GT(*norm, 0.01);
    EXPECT_NEAR(*accelerator.clip_grad_norm_(model, 1.0), 0.01, 1e-5);
    at::Tensor same = at::full({1}, static_cast<double>(*norm), at::kDouble);
    communicator.broadcast(same).wait();
    EXPECT_EQ(same.item<double>(), *norm);  // equal bits on all ranks
  }
});
TEST(Accelerator, ClipsOnceAtTheWindowsEnd) {
  clips.everywhere();
}

TEST(Accelerator, HelpersReportTheRank) {
  run_thread_ranks(
      4,
      [](const Communicator& communicator) {
        const Accelerator accelerator({.communicator = communicator});
        EXPECT_EQ(accelerator.num_processes(), 4);
        EXPECT_EQ(accelerator.process_index(), communicator.rank());
        EXPECT_EQ(accelerator.is_main_process(), communicator.rank() == 0);
        EXPECT_EQ(accelerator.is_local_main_process(), communicator.rank() % 2 == 0);
        EXPECT_EQ(accelerator.is_last_process(), communicator.rank() == 3);
        accelerator.wait_for_everyone();
      },
      {}, 2);
}

const RankProgram two_connections("two_connections", [] {
  // Without a communicator each Accelerator joins the job itself, also a second Accelerator in the same process.
  Accelerator first;
  Accelerator second;
  at::Tensor ones = at::ones({3});
  second.communicator().all_reduce(ones).wait();
  first.communicator().all_reduce(ones).wait();
  EXPECT_EQ(ones[0].item<float>(), 4.0F);
});
TEST(Accelerator, JoinsTheJobByItself) {
  expect_success(run_processes(two_connections, 2));
}

}  // namespace
}  // namespace tutti::test::accelerator_test
