// Which saved state is loaded into which object: by names where there are some. 1 and 2 ranks.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "train/match_saved.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::saved_objects_test {
namespace {

using Matches = std::vector<std::optional<std::size_t>>;

TEST(MatchSaved, PrefersEqualIdentitiesAndKeepsTheOrderOfTheRest) {
  EXPECT_EQ(match_saved({"a", "b"}, {"b", "a"}), (Matches{1, 0}));
  EXPECT_EQ(match_saved({"a", "a", "b"}, {"a", "b", "a"}), (Matches{0, 2, 1}));
  EXPECT_EQ(match_saved({"renamed", "b"}, {"a", "b"}), (Matches{0, 1}));
  EXPECT_EQ(match_saved({"b", "renamed"}, {"a", "b"}), (Matches{1, 0}));
  EXPECT_EQ(match_saved({"a", "b"}, {"", ""}), (Matches{0, 1}));  // saved by an earlier version
  EXPECT_EQ(match_saved({"a", "b"}, {"b"}), (Matches{std::nullopt, 0}));
  EXPECT_EQ(match_saved({"a"}, {"b", "a", "c"}), (Matches{1}));
  EXPECT_EQ(match_saved({}, {"a"}), Matches{});
  // Loaders of a run that goes on with another batch size.
  EXPECT_EQ(match_saved({"6 samples in batches of 4", "24 samples in batches of 4, shuffled"},
                        {"24 samples in batches of 2, shuffled", "6 samples in batches of 2"}),
            (Matches{1, 0}));
}

struct DiscriminatorImpl : MlpImpl {
  using MlpImpl::MlpImpl;
};
TORCH_MODULE(Discriminator);
struct GeneratorImpl : MlpImpl {
  using MlpImpl::MlpImpl;
};
TORCH_MODULE(Generator);

AcceleratorOptions alone(const std::filesystem::path& folder) {
  return {.project = {.project_dir = folder}, .communicator = Communicator()};
}

// Weights with decay and biases without, in either order.
std::shared_ptr<torch::optim::AdamW> grouped(const Mlp& net, bool biases_first) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool biases : {biases_first, !biases_first}) {
    std::vector<at::Tensor> parameters;
    for (const auto& parameter : net->named_parameters()) {
      if (parameter.key().ends_with("bias") == biases) parameters.push_back(parameter.value());
    }
    groups.emplace_back(parameters, std::make_unique<torch::optim::AdamWOptions>(
                                        torch::optim::AdamWOptions(biases ? 0.5 : 0.125).weight_decay(biases ? 0 : 1)));
  }
  return std::make_shared<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(1));
}

TEST(SavedObjects, ParameterGroupsInAnotherOrderAreRefusedByName) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "saved";
  {
    Accelerator accelerator(alone(scratch.path()));
    Mlp net;
    accelerator.prepare(net, grouped(net, false));
    accelerator.save_state({.folder = folder});
  }
  Accelerator accelerator(alone(scratch.path()));
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, grouped(net, true));
  expect_refused(
      [&] { accelerator.load_state(folder); },
      "parameters that only its group 0 has: 'first.weight', 'second.weight'; that only this optimizer's has: "
      "'first.bias', 'second.bias'");
  EXPECT_EQ(optimizer.learning_rate(), 0.5);  // nothing was loaded
  Accelerator same_order(alone(scratch.path()));
  Mlp again;
  auto [model_again, restored] = same_order.prepare(again, grouped(again, false));
  restored.set_learning_rate(9);
  same_order.load_state(folder);
  EXPECT_EQ(restored.param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(restored.param_groups()[1].options().get_lr(), 0.5);
}

// The optimizer and the schedule of each model have a rate of their own.
struct Gan {
  Gan(const AcceleratorOptions& options, bool generator_first) : accelerator(options) {
    for (const bool generator : {generator_first, !generator_first}) {
      if (generator) {
        of_g = prepare(g, 0.25);
      } else {
        of_d = prepare(d, 0.5);
      }
    }
  }
  template <typename Model>
  Optimizer prepare(Model& model, double rate) {
    return std::get<1>(accelerator.prepare(model, torch::optim::AdamW(model->parameters(), rate),
                                           LrSchedule([](std::int64_t) { return 1.0; })));
  }
  template <typename Model>
  void step(Model& model, std::optional<Optimizer>& optimizer, int count) {
    for (int i = 0; i < count; ++i) {
      accelerator.backward(loss_of(model->forward(batch_of(i).input), batch_of(i).target));
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  double steps_of(const std::optional<Optimizer>& optimizer) const {
    return static_cast<double>(optimizer->state_dict().get<std::int64_t>("state.first.weight.step"));
  }

  Accelerator accelerator;
  Discriminator d{1};
  Generator g{2};
  std::optional<Optimizer> of_d, of_g;
};

const RankCase reordered("saved_objects_reordered", [](const Communicator& communicator) {
  const TemporaryFolder mine;
  const std::filesystem::path folder = communicator.broadcast_object((mine.path() / "saved").string());
  const AcceleratorOptions options{.communicator = communicator};
  std::string d_bytes, g_bytes;
  {
    Gan gan(options, false);
    gan.step(gan.d, gan.of_d, 3);
    gan.step(gan.g, gan.of_g, 1);
    gan.accelerator.save_state({.folder = folder});
    d_bytes = bytes_of(*gan.d);
    g_bytes = bytes_of(*gan.g);
  }
  for (const bool generator_first : {true, false}) {
    Gan gan(options, generator_first);
    gan.of_d->set_learning_rate(9);
    gan.of_g->set_learning_rate(9);
    gan.accelerator.load_state(folder);
    EXPECT_EQ(bytes_of(*gan.d), d_bytes);
    EXPECT_EQ(bytes_of(*gan.g), g_bytes);
    EXPECT_EQ(gan.of_d->learning_rate(), 0.5);
    EXPECT_EQ(gan.of_g->learning_rate(), 0.25);
    EXPECT_EQ(gan.steps_of(gan.of_d), 3);
    EXPECT_EQ(gan.steps_of(gan.of_g), 1);
    EXPECT_EQ(gan.of_d->reducer()->steps(), 3);
    EXPECT_EQ(gan.of_g->reducer()->steps(), 1);
  }
  communicator.barrier().wait();
});
TEST(SavedObjects, ModelsOfEqualLayersAreMatchedByTheirClasses) {
  reordered.on_threads({1, 2});
}

// Preparing again moves a window to the end of the list.
TEST(SavedObjects, WindowsFollowTheirParametersAfterPreparingAgain) {
  const TemporaryFolder scratch;
  {
    Gan gan(alone(scratch.path()), false);
    gan.step(gan.d, gan.of_d, 3);
    gan.step(gan.g, gan.of_g, 1);
    gan.accelerator.prepare(gan.d, *gan.of_d);
    gan.step(gan.d, gan.of_d, 1);
    gan.accelerator.save_state({.folder = scratch.path() / "saved"});
    const auto no_sync = gan.accelerator.no_sync(gan.d);
    gan.accelerator.backward(loss_of(gan.d->forward(batch_of(7).input), batch_of(7).target));
    gan.accelerator.save_state({.folder = scratch.path() / "within"});
  }
  Gan gan(alone(scratch.path()), false);
  gan.accelerator.load_state(scratch.path() / "saved");
  EXPECT_EQ(gan.of_g->reducer()->steps(), 1);
  EXPECT_FALSE(gan.d->first->weight.grad().defined());
  gan.accelerator.load_state(scratch.path() / "within");
  EXPECT_TRUE(gan.d->first->weight.grad().defined());
  EXPECT_FALSE(gan.g->first->weight.grad().defined());
}

// A loader in a function, as for an evaluation.
template <typename During>
void evaluate(Accelerator& accelerator, During during) {
  auto loader = accelerator.data_loader(Samples{6}, {.batch_size = 2});
  for ([[maybe_unused]] auto& batch : loader) during();
}

const RankCase evaluation_loaders("saved_objects_evaluation_loaders", [](const Communicator& communicator) {
  const TemporaryFolder mine;
  const std::filesystem::path scratch = communicator.broadcast_object(mine.path().string());
  const auto make = [&](const auto& use) {
    Accelerator accelerator({.communicator = communicator});
    auto loader = accelerator.data_loader(Samples{24}, {.batch_size = 2, .shuffle = true, .seed = 3});
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    use(accelerator, loader);
  };
  make([&](Accelerator& accelerator, auto& loader) {
    int batches = 0;
    for ([[maybe_unused]] auto& batch : loader) {
      evaluate(accelerator, [] {});
      if (++batches == 2) break;
    }
    for ([[maybe_unused]] auto& batch : loader) {
      evaluate(accelerator, [] {});
      accelerator.save_state({.folder = scratch / "after"});
      bool first = true;
      evaluate(accelerator, [&] {
        if (std::exchange(first, false)) accelerator.save_state({.folder = scratch / "within"});
      });
      break;
    }
  });
  for (const char* name : {"after", "within"}) {
    make([&](Accelerator& accelerator, auto& loader) {
      evaluate(accelerator, [] {});
      accelerator.load_state(scratch / name);
      EXPECT_EQ(loader.cursor()->epoch(), 1) << name;
      EXPECT_EQ(loader.cursor()->batch_index(), 1) << name;
    });
  }
  communicator.barrier().wait();
});
TEST(SavedObjects, ALoaderThatHasEndedIsNotNeeded) {
  evaluation_loaders.on_threads({1, 2});
}

TEST(SavedObjects, ALoaderIsMatchedByItsDataAndOneWithoutASavedPositionIsAWarning) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "saved";
  {
    Accelerator accelerator(alone(scratch.path()));
    auto eval = accelerator.data_loader(Samples{6}, {.batch_size = 2});
    auto train = accelerator.data_loader(Samples{24}, {.batch_size = 2});
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for ([[maybe_unused]] auto& batch : train) break;
    accelerator.save_state({.folder = folder});
  }
  Accelerator accelerator(alone(scratch.path()));
  auto train = accelerator.data_loader(Samples{24}, {.batch_size = 2});
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  testing::internal::CaptureStderr();
  accelerator.load_state(folder);
  EXPECT_EQ(train.epoch(), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // the other loader had not begun an epoch
  auto second = accelerator.data_loader(Samples{6}, {.batch_size = 2});
  auto third = accelerator.data_loader(Samples{8}, {.batch_size = 2});
  auto for_evaluation = accelerator.data_loader(Samples{24}, {.batch_size = 2, .evaluation = true});
  testing::internal::CaptureStderr();
  accelerator.load_state(folder);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("holds no position of 'loader_2'"), std::string::npos) << log;
  EXPECT_EQ(log.find("'loader_3'"), std::string::npos) << log;  // for evaluation
  EXPECT_EQ(train.epoch(), 1);
  EXPECT_EQ(third.epoch(), 0);
  EXPECT_EQ(for_evaluation.epoch(), 0);
  // Which of two loaders over equal data the saved position belongs to is unknown.
  const auto like_third = accelerator.data_loader(Samples{24}, {.batch_size = 2});
  expect_refused([&] { accelerator.load_state(folder); },
                 "has no 'loader_4', which this program has in addition to what was saved: create the loader after "
                 "load_state(), or start without the checkpoint");
}

TEST(SavedObjects, WhatAProgramHasInAdditionIsNamedWithARemedy) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "saved";
  {
    Accelerator accelerator(alone(scratch.path()));
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.save_state({.folder = folder});
  }
  {
    Accelerator accelerator(alone(scratch.path()));
    Mlp net, second;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.prepare(second);
    expect_refused([&] { accelerator.load_state(folder); }, "has no 'model_1', which this program has in addition to");
  }
  for (const int ranks : {1, 2}) {  // one rank saved
    run_thread_ranks(ranks, [&](const Communicator& communicator) {
      Accelerator accelerator({.communicator = communicator});
      Mlp net;
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      const LocalSGD local(accelerator, net, {.local_sgd_steps = 2});
      expect_refused([&] { accelerator.load_state(folder); }, "create LocalSGD after load_state()");
    });
  }
}

// For example after a run in fp16 has diverged.
TEST(SavedObjects, ARunGoesOnInAnotherPrecision) {
  const TemporaryFolder scratch;
  for (const auto& [before, after, text] : {std::tuple(Precision::fp16, Precision::bf16, "saved by a run in fp16"),
                                            std::tuple(Precision::no, Precision::fp16, "not saved by a run in fp16")}) {
    const auto folder = scratch.path() / text;
    for (const bool loads : {false, true}) {
      AcceleratorOptions options = alone(scratch.path());
      options.mixed_precision = loads ? after : before;
      Accelerator accelerator(options);
      Mlp net;
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      if (!loads) {
        accelerator.save_state({.folder = folder});
        continue;
      }
      testing::internal::CaptureStderr();
      accelerator.load_state(folder);
      EXPECT_NE(testing::internal::GetCapturedStderr().find(text), std::string::npos);
    }
  }
}

TEST(SavedObjects, AnAlgorithmOfLocalStepsThatTheProgramLacksIsNamedWithARemedy) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "saved";
  for (const bool has_local_sgd : {true, false}) {
    Accelerator accelerator(alone(scratch.path()));
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const LocalSGD local(accelerator, net, {.local_sgd_steps = 2, .enabled = has_local_sgd});
    if (has_local_sgd) {
      accelerator.save_state({.folder = folder});
    } else {
      expect_refused([&] { accelerator.load_state(folder); }, "create LocalSGD before load_state()");
    }
  }
}

/// Restores the working directory on destruction.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder);
  }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  std::filesystem::path before_;
};

TEST(SavedObjects, ARelativeFolderStaysWhereItWasNamed) {
  const TemporaryFolder named, later;
  const WorkingDirectory restored(named.path());
  Accelerator accelerator(alone("run"));
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_TRUE(accelerator.save_state({.folder = "by_name", .asynchronous = true}).is_absolute());
  std::filesystem::current_path(later.path());
  accelerator.save_state();
  EXPECT_TRUE(std::filesystem::exists(named.path() / "by_name" / "model.safetensors"));
  EXPECT_TRUE(CheckpointFolder(named.path() / "run" / "checkpoints").newest());
  EXPECT_TRUE(std::filesystem::is_empty(later.path()));
}

TEST(SavedObjects, TheLostPositionOfALoaderWithinAnEpochIsAWarning) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "saved";
  const auto train = [&](bool resumed) {
    Accelerator accelerator(alone(scratch.path()));
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    if (resumed) accelerator.load_state(folder);  // too early: the loader does not exist yet
    for ([[maybe_unused]] auto& batch : accelerator.data_loader(Samples{24}, {.batch_size = 2})) {
      if (!resumed) accelerator.save_state({.folder = folder});
      break;
    }
  };
  train(false);
  testing::internal::CaptureStderr();
  train(true);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("holds the position of 'loader'"), std::string::npos) << log;
}

TEST(SavedObjects, AlgorithmsOfLocalStepsGetTheirNumbersFromThoseThatExist) {
  const TemporaryFolder scratch;
  Gan gan(alone(scratch.path()), false);
  auto first = std::make_unique<LocalSGD>(gan.accelerator, gan.d, LocalSGDOptions{.local_sgd_steps = 2});
  const LocalSGD second(gan.accelerator, gan.g, {.local_sgd_steps = 2});
  first.reset();
  const LocalSGD third(gan.accelerator, gan.d, {.local_sgd_steps = 2});
  gan.accelerator.save_state({.folder = scratch.path() / "saved"});
  EXPECT_NO_THROW(gan.accelerator.load_state(scratch.path() / "saved"));
}

}  // namespace
}  // namespace tutti::test::saved_objects_test
