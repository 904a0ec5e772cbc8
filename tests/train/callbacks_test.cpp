// The callbacks of include/tutti/train/callbacks, in a Trainer's run.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <stdexcept>

#include "checkpoint/folder_names.h"
#include "checkpoint/reservation.h"
#include "core/file_descriptor.h"
#include "optim/refused.h"
#include "support/rank_case.h"
#include "train/trainer_run.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/core/error.h"
#include "tutti/train/callbacks/best_model.h"
#include "tutti/train/callbacks/early_stopping.h"
#include "tutti/train/callbacks/ema.h"
#include "tutti/train/callbacks/nan_guard.h"

namespace tutti::test::callbacks_test {
namespace {

TEST(EarlyStopping, StopsAfterEvaluationsWithoutProgress) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 100, .evaluate_every = 1});
  const std::vector<double> losses{5, 4, 4.5, std::numeric_limits<double>::quiet_NaN(), 3, 3, 2.95, 9};
  std::size_t next = 0;
  run.trainer.set_evaluation([&] { return Scalars{{"loss", losses.at(next++)}}; });
  run.trainer.add_callback(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 3, .min_delta = 0.1}));
  EXPECT_EQ(run.trainer.fit(), StopReason::callback);
  EXPECT_EQ(run.trainer.global_step(), 8);
}

TEST(EarlyStopping, GoesOnFromItsStateAndRefusesAnUnknownMetric) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 100});
  EarlyStopping before({.metric = "eval/accuracy", .lower_is_better = false, .patience = 2});
  EarlyStopping after({.metric = "eval/accuracy", .lower_is_better = false, .patience = 2});
  before.on_evaluate_end(run.trainer, {{"eval/accuracy", 0.9}});
  before.on_evaluate_end(run.trainer, {{"eval/accuracy", 0.8}});
  after.load_state_dict(before.state_dict());
  EXPECT_EQ(after.bad_evaluations(), 1);
  EXPECT_THROW(after.on_evaluate_end(run.trainer, {{"eval/loss", 0.8}}), UsageError);
  EXPECT_THROW(EarlyStopping({.patience = 0}), UsageError);
}

const RankCase nan_guard("nan_guard", [](const Communicator& communicator) {
  TrainerRun run({.communicator = communicator}, {.max_steps = 10});
  run.trainer.add_callback(std::make_shared<NanGuard>());
  struct Spoil final : Callback {
    explicit Spoil(TrainerRun& of) : run(of) {}
    void on_step_start(TrainerContext& trainer) override {
      const bool mine = trainer.accelerator().is_last_process() && trainer.global_step() == 2;
      run.factor = mine ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      if (trainer.global_step() == 2) before = bytes_of(trainer.model());
    }
    TrainerRun& run;
    std::string before;
  };
  const auto spoil = std::make_shared<Spoil>(run);
  run.trainer.add_callback(spoil);
  const std::string who = "not finite on rank " + std::to_string(communicator.size() - 1);
  try {
    run.trainer.fit();
    FAIL() << "trained on";
  } catch (const NonFiniteError& error) {
    EXPECT_NE(std::string(error.what()).find("step 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(who), std::string::npos) << error.what();
  }
  EXPECT_TRUE(bytes_of(*run.net) == spoil->before);
});
TEST(NanGuard, NamesTheRankBeforeParametersAreSpoiled) {
  nan_guard.everywhere();
}

TEST(NanGuard, ARunThatResumesAfterItsErrorTrainsOn) {
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                 {.max_steps = 4, .save_every = 1, .resume = true});
  struct SpoilOnce final : Callback {
    explicit SpoilOnce(TrainerRun& of) : run(of) {}
    void on_step_start(TrainerContext& trainer) override {
      const bool now = trainer.global_step() == 2 && !std::exchange(spoiled, spoiled || trainer.global_step() == 2);
      run.factor = now ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    }
    TrainerRun& run;
    bool spoiled = false;
  };
  const auto recorder = std::make_shared<Recorder>();
  run.trainer.add_callback(recorder);
  run.trainer.add_callback(std::make_shared<NanGuard>());
  run.trainer.add_callback(std::make_shared<SpoilOnce>(run));
  EXPECT_THROW(run.trainer.fit(), NonFiniteError);
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  EXPECT_EQ(recorder->metrics.size(), 4U);
}

TEST(NanGuard, LeavesAnOverflowToTheLossScaler) {
  TrainerRun run(
      {.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 3e38}, .communicator = Communicator()},
      {.max_steps = 2});
  const auto recorder = std::make_shared<Recorder>();
  run.trainer.add_callback(recorder);
  run.trainer.add_callback(std::make_shared<NanGuard>());
  EXPECT_EQ(run.trainer.fit(), StopReason::finished);
  EXPECT_TRUE(recorder->metrics[0].step_was_skipped);
}

TEST(NanGuard, LeavesAnOverflowToALossScalerWhoseScaleIsOne) {
  struct Logged final : Callback {
    bool has_scale = false;
    void on_log_end(TrainerContext&, const Scalars& scalars) override {
      for (const auto& [name, value] : scalars) has_scale = has_scale || name == "loss_scale";
    }
  };
  const AcceleratorOptions options{
      .mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 1}, .communicator = Communicator()};
  TrainerRun run(options, {.max_steps = 1, .log_every = 1});
  const auto logged = std::make_shared<Logged>();
  run.trainer.add_callback(logged);
  run.trainer.fit();
  EXPECT_TRUE(logged->has_scale);

  TrainerRun overflows(options, {.max_steps = 1});
  overflows.factor = 1e30;  // the loss is finite, its gradients in float16 are not
  const auto recorder = std::make_shared<Recorder>();
  overflows.trainer.add_callback(recorder);
  overflows.trainer.add_callback(std::make_shared<NanGuard>());
  EXPECT_EQ(overflows.trainer.fit(), StopReason::finished);
  EXPECT_TRUE(recorder->metrics[0].step_was_skipped);
}

TEST(Ema, IsTheMovingAverageAndRestoresParametersAfterEvaluation) {
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 3, .evaluate_every = 3});
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.8, .warmup = false});
  struct Watch final : Callback {
    at::Tensor expected;
    at::Tensor last;
    void on_fit_start(TrainerContext& trainer) override { expected = weight(trainer).clone(); }
    void on_optimizer_step_end(TrainerContext& trainer) override {
      expected = 0.8 * expected + 0.2 * weight(trainer);
      last = weight(trainer).clone();
    }
    static at::Tensor weight(TrainerContext& trainer) { return trainer.model().parameters()[0].detach(); }
  };
  const auto watch = std::make_shared<Watch>();
  run.trainer.add_callback(watch);
  run.trainer.add_callback(ema);
  at::Tensor evaluated;
  run.trainer.set_evaluation([&] {
    evaluated = run.net->first->weight.detach().clone();
    return Scalars{{"loss", 1.0}};
  });
  run.trainer.fit();
  EXPECT_TRUE(at::allclose(ema->average().at("first.weight"), watch->expected, 1e-5, 1e-7));
  EXPECT_TRUE(at::allclose(evaluated, watch->expected, 1e-5, 1e-7));
  EXPECT_TRUE(run.net->first->weight.equal(watch->last));
  EXPECT_THROW(Ema({.decay = 1}), UsageError);
}

// An exception in the evaluation, or in a callback before or after it.
TEST(Ema, LeavesTheModelAsItWasIfAnEvaluationThrows) {
  struct Fails final : Callback {
    void on_evaluate_start(TrainerContext&) override { fail_at("start"); }
    void on_evaluate_end(TrainerContext&, const Scalars&) override { fail_at("end"); }
    void on_log_end(TrainerContext&, const Scalars&) override { fail_at("log"); }
    void fail_at(const std::string& event) const {
      if (place == event) throw std::runtime_error("at " + event);
    }
    std::string place;
  };
  for (const bool ema_first : {true, false}) {
    TrainerRun run({.communicator = Communicator()}, {.max_steps = 3, .log_every = 0});
    const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.8, .warmup = false});
    const auto fails = std::make_shared<Fails>();
    if (ema_first) run.trainer.add_callback(ema);
    run.trainer.add_callback(fails);
    if (!ema_first) run.trainer.add_callback(ema);
    at::Tensor evaluated;
    run.trainer.set_evaluation([&] {
      evaluated = run.net->first->weight.detach().clone();
      fails->fail_at("evaluation");
      return Scalars{{"loss", 1.0}};
    });
    run.trainer.fit();
    const std::string trained = bytes_of(*run.net);
    const at::Tensor average = ema->average().at("first.weight").clone();
    ASSERT_FALSE(average.equal(run.net->first->weight));
    for (const char* place : {"start", "evaluation", "log", "end"}) {
      fails->place = place;
      EXPECT_THROW(run.trainer.evaluate(), std::runtime_error) << place;
      EXPECT_TRUE(run.net->is_training()) << place;
      EXPECT_TRUE(bytes_of(*run.net) == trained) << place;
      EXPECT_TRUE(ema->average().at("first.weight").equal(average)) << place;
      fails->place.clear();
      run.trainer.evaluate();
      EXPECT_TRUE(evaluated.equal(average)) << place;
      EXPECT_TRUE(bytes_of(*run.net) == trained) << place;
    }
  }
}

TEST(Ema, NoCheckpointIsSavedWhileTheModelHasTheAverages) {
  const TemporaryFolder scratch;
  struct Saves final : Callback {
    void on_evaluate_end(TrainerContext& trainer, const Scalars&) override { trainer.save_checkpoint(); }
  };
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                 {.max_steps = 2, .evaluate_every = 1});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  run.trainer.add_callback(std::make_shared<Ema>());
  run.trainer.add_callback(std::make_shared<Saves>());
  expect_refused<UsageError>([&] { run.trainer.fit(); }, "save_checkpoint() during an evaluation");
  EXPECT_FALSE(CheckpointFolder(scratch.path() / "checkpoints").newest());
  run.trainer.save_checkpoint();
}

// The meta device stands for an accelerator.
TEST(Ema, AveragesOfHalfPrecisionAreFloat) {
  Accelerator accelerator({.communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{8}, {.batch_size = 2});
  Mlp net;
  net->to(at::kBFloat16);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                  {.loss =
                       [](Mlp& mlp, Batch& batch) {
                         return loss_of(mlp->forward(batch.input.to(at::kBFloat16)), batch.target.to(at::kBFloat16));
                       }},
                  quiet({.max_steps = 4}));
  const auto ema = std::make_shared<Ema>(EmaOptions{.decay = 0.999, .warmup = false});
  trainer.add_callback(ema);
  trainer.fit();
  const at::Tensor average = ema->average().at("first.weight");
  const at::Tensor weight = net->first->weight.detach();
  EXPECT_EQ(average.scalar_type(), at::kFloat);
  EXPECT_FALSE(at::equal(average, average.to(at::kBFloat16).to(at::kFloat)));  // changes below bf16's precision
  const at::Tensor before = average.clone();
  const at::Tensor trained = weight.clone();
  ema->swap(*net);
  EXPECT_TRUE(at::equal(weight, before.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(ema->average().at("first.weight"), trained.to(at::kFloat)));
  ema->swap(*net);
  EXPECT_TRUE(at::equal(weight, trained));
  EXPECT_TRUE(at::equal(ema->average().at("first.weight"), before));
}

TEST(Ema, LoadsItsStateToTheDeviceOfTheAverage) {
  const auto state_on = [](at::Device device) {
    StateDict state;
    state.set("steps", std::int64_t{1});
    state.set("average.weight", at::zeros({2}, device));
    return state;
  };
  Ema ema;
  ema.load_state_dict(state_on(at::kMeta));
  ema.load_state_dict(state_on(at::kCPU));
  EXPECT_EQ(ema.average().at("weight").device(), at::Device(at::kMeta));
}

const RankCase local_norms("nan_guard_local_norms", [](const Communicator& communicator) {
  Accelerator accelerator({.ignored_parameters = {"first", "second"}, .communicator = communicator});
  auto loader = accelerator.data_loader(Samples{8 * communicator.size()}, {.batch_size = 2});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const int last = communicator.size() - 1;
  int passes = 0;
  Trainer trainer(accelerator, model, optimizer, std::nullopt, loader,
                  {.loss =
                       [&](Mlp& mlp, Batch& batch) {
                         const at::Tensor loss = loss_of(mlp->forward(batch.input), batch.target);
                         // Adds 0 to the loss, and NaN to the gradient.
                         const at::Tensor& weight = mlp->first->weight;
                         const bool adds = communicator.rank() == last && passes++ == 0;
                         return adds ? loss + (weight - weight.detach()).abs().sqrt().sum() : loss;
                       }},
                  quiet({.max_steps = 4}));
  trainer.add_callback(std::make_shared<NanGuard>());
  expect_refused<NonFiniteError>([&] { trainer.fit(); },
                                 "step 2: the loss is not finite on rank " + std::to_string(last));
});
TEST(NanGuard, WithoutAGradientNormOfAllRanksChecksTheLoss) {
  local_norms.on_threads({2, 3});
}

const RankCase ema_by_rank("ema_by_rank", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  const auto average_after = [&](std::int64_t steps) {
    TrainerRun run({.project = {.project_dir = folder}, .ignored_parameters = {"first"}, .communicator = communicator},
                   {.max_steps = steps, .resume = true});
    const auto ema = std::make_shared<Ema>();
    run.trainer.add_callback(ema);
    run.trainer.fit();
    return ema->average();
  };
  const auto before = average_after(3);
  const auto after = average_after(3);
  for (const auto& [name, average] : before) EXPECT_TRUE(after.at(name).equal(average)) << name;
  const std::string sum = std::to_string(before.at("first.weight").sum().item<double>());
  EXPECT_EQ(sum == communicator.broadcast_object(sum), communicator.rank() == 0);
  communicator.barrier().wait();
});
TEST(Ema, IsSavedByEachRankWhereParametersAre) {
  ema_by_rank.on_threads({1, 2});
}

/// Adds an Ema before or after the BestModel, or none.
void check_best_model(std::optional<bool> ema_first) {
  const TemporaryFolder scratch;
  TrainerRun run({.project = {.project_dir = scratch.path()}, .communicator = Communicator()},
                 {.max_steps = 3, .evaluate_every = 1});
  const std::vector<double> losses{2, 1, 3};
  std::size_t next = 0;
  std::string best;
  run.trainer.set_evaluation([&] {
    if (next == 1) best = bytes_of(*run.net);
    return Scalars{{"loss", losses.at(next++)}};
  });
  const auto callback = std::make_shared<BestModel>();
  const auto ema = std::make_shared<Ema>();
  if (ema_first == true) run.trainer.add_callback(ema);
  run.trainer.add_callback(callback);
  if (ema_first == false) run.trainer.add_callback(ema);
  run.trainer.fit();
  EXPECT_EQ(callback->best(), 1);
  Noisy loaded;
  load_model(*loaded, scratch.path() / "best_model.safetensors");
  EXPECT_TRUE(bytes_of(*loaded) == best);
}
TEST(BestModel, KeepsTheModelOfTheBestEvaluation) {
  for (const auto ema_first : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
    SCOPED_TRACE(ema_first ? (*ema_first ? "Ema first" : "Ema last") : "no Ema");
    check_best_model(ema_first);
  }
}

// Another job writes the file. The callback looks for the end of its right again and again.
TEST(BestModel, WaitsWhileAnotherJobWritesItsFile) {
  const TemporaryFolder scratch;
  const auto file = scratch.path() / "model.safetensors";
  std::optional<checkpoint::Reservation> right(checkpoint::Reservation::take(file));
  const FileDescriptor looks(::inotify_init1(IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(looks.get(), checkpoint::owner_of(file).c_str(), IN_OPEN), 0);
  TrainerRun run({.communicator = Communicator()}, {.max_steps = 1});
  BestModel callback({.file = file});
  auto saves = std::async(std::launch::async, [&] { callback.on_evaluate_end(run.trainer, {{"eval/loss", 1.0}}); });
  for (int times = 0; times < 2; ++times) {
    pollfd waits{.fd = looks.get(), .events = POLLIN, .revents = 0};
    std::array<char, 1000> event{};
    EXPECT_EQ(::poll(&waits, 1, 20'000), 1);
    if (waits.revents != 0) {
      EXPECT_GT(::read(looks.get(), event.data(), event.size()), 0);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(file));
  right.reset();
  saves.get();
  EXPECT_TRUE(std::filesystem::exists(file));
}

const RankCase best_model_nowhere("best_model_nowhere", [](const Communicator& communicator) {
  TrainerRun run({.communicator = communicator}, {.max_steps = 3, .evaluate_every = 1});
  run.trainer.set_evaluation([] { return Scalars{{"loss", 1.0}}; });
  run.trainer.add_callback(std::make_shared<BestModel>());
  expect_refused<UsageError>([&] { run.trainer.fit(); }, "BestModel: name a file");
  EXPECT_EQ(run.trainer.global_step(), 0);
});
TEST(BestModel, WithoutAFileIsRefusedOnAllRanksBeforeTheFirstStep) {
  best_model_nowhere.on_threads({1, 2});
}

TEST(StageClock, GivesEveryMomentToOneStage) {
  double waited = 0;
  auto now = StageClock::Clock::time_point{};
  const auto pass = [&now](int seconds) { now += std::chrono::seconds(seconds); };
  StageClock clock([&] { return waited; }, [&] { return now; });
  pass(1);
  clock.measure(Stage::backward, [&] {
    pass(5);
    waited += 2;
  });
  clock.measure(Stage::optimizer, [&] {
    pass(1);
    clock.measure(Stage::data, [&] { pass(3); });
    pass(1);
  });
  pass(4);
  const StageSeconds seconds = clock.take();
  EXPECT_EQ(seconds, (StageSeconds{3, 0, 3, 2, 2, 5}));
  EXPECT_EQ(clock.take(), StageSeconds{});
}

}  // namespace
}  // namespace tutti::test::callbacks_test
