// save_state() and load_state(): as processes, because each rank has random numbers of its own.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "support/rank_case.h"
#include "sync/segment.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"

namespace tutti::test::accelerator_state_test {
namespace {

/// A counter that can refuse to be loaded.
struct Counter final : Stateful {
  std::int64_t value = 0;
  bool refuses = false;
  StateDict state_dict() const override {
    StateDict state;
    state.set("value", value);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    if (refuses) throw CheckpointError("the counter refuses");
    value = state.get<std::int64_t>("value");
  }
};

constexpr double base_rate = 0.05;

struct RunOptions {
  AcceleratorOptions accelerator{};
  DataLoaderOptions data{.batch_size = 2, .shuffle = true, .seed = 7};
  std::int64_t samples = 23;
  bool accumulate = true;
  double dropout = 0.5;
  bool sgd = false;  ///< plain SGD instead of AdamW with a warm-up, and no clipping
};

std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Noisy& net, const RunOptions& options) {
  if (options.sgd) return std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
  return std::make_shared<torch::optim::AdamW>(net->parameters(), base_rate);
}

struct TrainingRun {
  explicit TrainingRun(const RunOptions& of)
      : options(of),
        accelerator(of.accelerator),
        loader(accelerator.data_loader(Samples{of.samples}, of.data)),
        net(of.dropout),
        prepared(accelerator.prepare(
            net, optimizer_of(net, options),
            options.sgd ? LrSchedule([](std::int64_t) { return 1.0; }) : linear_with_warmup(3, 40))) {
    torch::manual_seed(100 + static_cast<std::uint64_t>(accelerator.rank()));
    accelerator.register_for_checkpointing("counter", counter);
  }

  /// Reads `micro_batches` over any number of epochs. Calls `after` in the body of each, with its number.
  void train(
      std::int64_t micro_batches, const std::function<void(std::int64_t)>& after = [](std::int64_t) {}) {
    std::int64_t number = 0;
    while (number < micro_batches) {
      for (auto& batch : loader) {
        std::optional<AccumulateScope> window;
        if (options.accumulate) window.emplace(accelerator.accumulate(net));
        accelerator.backward(accelerator.autocast([&] { return loss_of(net->forward(batch.input), batch.target); }));
        auto& [model, optimizer, scheduler] = prepared;
        const bool step = options.accumulate || (counter.value + 1) % 3 == 0;
        if (step) {
          if (!options.sgd) accelerator.clip_grad_norm_(model, 0.5);
          optimizer.step();
          scheduler.step();
          optimizer.zero_grad();
        }
        ++counter.value;
        after(++number);
        if (number == micro_batches) return;
      }
    }
  }

  RunOptions options;
  Accelerator accelerator;
  DataLoader<Samples> loader;
  Noisy net;
  std::tuple<Noisy&, Optimizer, Scheduler> prepared;
  Counter counter;
};

/// The same folder on every rank. Rank 0 removes it at the end.
std::filesystem::path shared_folder(const TemporaryFolder& mine, const Communicator& communicator) {
  return communicator.broadcast_object(mine.path().string());
}

// A run saves after every micro-batch, also in the middle of windows and epochs. Each checkpoint is trained to the end.
void check_resume(const Communicator& communicator, RunOptions options) {
  constexpr std::int64_t total = 17;
  const TemporaryFolder scratch;
  options.accelerator.communicator = communicator;
  options.accelerator.project.project_dir = shared_folder(scratch, communicator);
  TrainingRun whole(options);
  std::vector<std::filesystem::path> folders;
  whole.train(total, [&](std::int64_t number) {
    folders.push_back(whole.accelerator.save_state({.asynchronous = number % 2 == 0}));
  });
  whole.accelerator.wait_for_checkpoint();
  const std::string expected = bytes_of(*whole.net);
  for (std::int64_t done = 1; done < total; done += 2) {
    TrainingRun resumed(options);
    torch::manual_seed(1);
    resumed.accelerator.load_state(folders[static_cast<std::size_t>(done - 1)]);
    EXPECT_EQ(resumed.counter.value, done);
    resumed.train(total - done);
    // Powers of 2 leave no trace in the parameters' bits.
    EXPECT_EQ(resumed.accelerator.loss_scale(), whole.accelerator.loss_scale());
    EXPECT_TRUE(bytes_of(*resumed.net) == expected) << "resumed after micro-batch " << done;
  }
  whole.accelerator.wait_for_everyone();
}

const RankCase resumes("resumes", [](const Communicator& communicator) {
  check_resume(communicator, {.accelerator = {.gradient_accumulation_steps = 3}});
});
TEST(AcceleratorState, ResumesAnywhereToTheSameBits) {
  resumes.on_processes({1, 2, 3});
}

const RankCase resumes_with_workers("resumes_with_workers", [](const Communicator& communicator) {
  check_resume(communicator, {.accelerator = {.gradient_accumulation_steps = 2},
                              .data = {.batch_size = 2, .shuffle = true, .seed = 7, .num_workers = 3}});
});
TEST(AcceleratorState, ResumesWithWorkersToTheSameBits) {
  resumes_with_workers.on_processes({2});
}

const RankCase resumes_automatic("resumes_automatic", [](const Communicator& communicator) {
  check_resume(communicator, {.accumulate = false});
});
TEST(AcceleratorState, ResumesAnUnannotatedLoopToTheSameBits) {
  resumes_automatic.on_processes({1, 2});
}

const RankCase resumes_fp16("resumes_fp16", [](const Communicator& communicator) {
  check_resume(communicator, {.accelerator = {.gradient_accumulation_steps = 2,
                                              .mixed_precision = Precision::fp16,
                                              .grad_scaler = {.init_scale = 1024, .growth_interval = 2}}});
});
TEST(AcceleratorState, ResumesFp16WithItsScale) {
  resumes_fp16.on_processes({1, 2});
}

const RankCase resumes_blocks("resumes_blocks", [](const Communicator& communicator) {
  check_resume(communicator, {.accelerator = {.gradient_accumulation_steps = 3},
                              .data = {.batch_size = 2, .shuffle = true, .sharding = Sharding::blocks_by_window}});
});
TEST(AcceleratorState, ResumesBlocksByWindow) {
  resumes_blocks.on_processes({2});
}

// Another number of ranks resumes. The model has no dropout, so that the result is known. A variable names the folder.
constexpr std::int64_t elastic_samples = 24;                 // two windows of twelve
const std::array<std::int64_t, 2> elastic_places = {6, 18};  // in the middle of each

/// AdamW steps after clipping hardly depend on the norm of the gradient. Plain SGD steps show the divisor of the mean.
RunOptions elastic_options(const Communicator& communicator, bool sgd) {
  return {.accelerator = {.gradient_accumulation_steps = 12 / communicator.size(), .communicator = communicator},
          .data = {.batch_size = 1, .shuffle = true, .seed = 3},
          .samples = elastic_samples,
          .dropout = 0,
          .sgd = sgd};
}
std::filesystem::path elastic_file(const char* kind, bool sgd, std::int64_t place) {
  return std::filesystem::path(std::getenv("TUTTI_TEST_FOLDER")) /
         (kind + std::string(sgd ? "_sgd_" : "_adamw_") + std::to_string(place));
}
const RankCase elastic_first("elastic_first", [](const Communicator& communicator) {
  for (const bool sgd : {false, true}) {
    TrainingRun run(elastic_options(communicator, sgd));
    run.train(elastic_places.back() / communicator.size(), [&](std::int64_t number) {
      for (const std::int64_t place : elastic_places) {
        if (number * communicator.size() == place) {
          run.accelerator.save_state({.folder = elastic_file("checkpoint", sgd, place)});
        }
      }
    });
  }
});
const RankCase elastic_second("elastic_second", [](const Communicator& communicator) {
  for (const bool sgd : {false, true}) {
    for (const std::int64_t place : elastic_places) {
      TrainingRun run(elastic_options(communicator, sgd));
      run.accelerator.load_state(elastic_file("checkpoint", sgd, place));
      // The rest of the window and of the epoch.
      run.train((elastic_samples - place) / communicator.size());
      if (communicator.rank() == 0) {
        std::ofstream(elastic_file("parameters", sgd, place), std::ios::binary) << bytes_of(*run.net);
      }
    }
  }
});
std::vector<float> floats_of(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
TEST(AcceleratorState, GoesOnWithAnotherNumberOfRanks) {
  // The same run on one process without an interruption.
  std::map<bool, std::vector<float>> expected;
  for (const bool sgd : {false, true}) {
    TrainingRun whole(elastic_options(Communicator(), sgd));
    whole.train(elastic_samples);
    expected[sgd] = floats_of(bytes_of(*whole.net));
  }
  for (const auto& [before, after] : {std::pair{1, 1}, {2, 3}, {3, 2}, {3, 1}, {1, 2}}) {
    const TemporaryFolder scratch;
    ::setenv("TUTTI_TEST_FOLDER", scratch.path().c_str(), 1);
    expect_success(run_processes(elastic_first.program(), before));
    expect_success(run_processes(elastic_second.program(), after));
    for (const bool sgd : {false, true}) {
      for (const std::int64_t place : elastic_places) {
        const auto values = floats_of(content_of(elastic_file("parameters", sgd, place)));
        ASSERT_EQ(values.size(), expected[sgd].size());
        // Equal up to rounding: each sample is read once, in the same windows, by any rank.
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(values[i], expected[sgd][i], sgd ? 1e-5 : 2e-4)
              << before << " ranks, saved after " << place << " samples, then " << after << (sgd ? ", SGD" : ", AdamW");
        }
      }
    }
  }
  ::unsetenv("TUTTI_TEST_FOLDER");
}

TEST(AcceleratorState, WhatCannotBeLoadedLeavesEverythingAsItWas) {
  const TemporaryFolder scratch;
  const RunOptions options{.accelerator = {.gradient_accumulation_steps = 3,
                                           .project = {.project_dir = scratch.path()},
                                           .communicator = Communicator()}};
  TrainingRun saved(options);
  std::filesystem::path folder;
  saved.train(4, [&](std::int64_t number) {
    if (number == 4) folder = saved.accelerator.save_state();
  });

  TrainingRun other(options);
  other.train(2);
  other.counter.refuses = true;
  const std::string before = bytes_of(*other.net);
  std::get<1>(other.prepared).set_learning_rate(0.125);  // by hand
  const auto rates = std::get<2>(other.prepared).last_rates();
  const at::Tensor random = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const at::Tensor gradient = other.net->first->weight.grad().clone();
  const auto unchanged = [&] {
    return bytes_of(*other.net) == before && std::get<2>(other.prepared).last_rates() == rates &&
           at::globalContext().defaultGenerator(at::kCPU).get_state().equal(random) &&
           other.net->first->weight.grad().equal(gradient) && other.counter.value == 2;
  };
  EXPECT_THROW(other.accelerator.load_state(folder), CheckpointError);  // the counter throws
  EXPECT_TRUE(unchanged());
  other.counter.refuses = false;
  EXPECT_THROW(other.accelerator.load_state(scratch.path() / "nothing"), CheckpointError);
  EXPECT_TRUE(unchanged());
  // One byte of the model has changed.
  {
    std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  EXPECT_THROW(other.accelerator.load_state(folder), CheckpointError);
  EXPECT_TRUE(unchanged());
}

TEST(AcceleratorState, ALoopContinuesAfterALoadThatFailedInIt) {
  const TemporaryFolder scratch;
  TrainingRun run({.accelerator = {.gradient_accumulation_steps = 3, .communicator = Communicator()}});
  run.accelerator.save_state({.folder = scratch.path() / "saved"});
  run.counter.refuses = true;
  const std::int64_t epoch = run.loader.epoch();
  std::int64_t batches = 0;
  for (auto& batch : run.loader) {
    ++batches;
    {
      const auto window = run.accelerator.accumulate(run.net);
      run.accelerator.backward(loss_of(run.net->forward(batch.input), batch.target));
      std::get<1>(run.prepared).step();
      std::get<1>(run.prepared).zero_grad();
    }
    EXPECT_THROW(run.accelerator.load_state(scratch.path() / "saved"), CheckpointError);
    EXPECT_EQ(run.loader.cursor()->batch_index(), batches);
  }
  EXPECT_EQ(run.loader.epoch(), epoch + 1);
}

TEST(AcceleratorState, NamesWhatIsMissingOrTooMuch) {
  const TemporaryFolder scratch;
  const AcceleratorOptions options{.project = {.project_dir = scratch.path()}, .communicator = Communicator()};
  Accelerator saving(options);
  Noisy net;
  saving.prepare(net, torch::optim::AdamW(net->parameters(), base_rate));
  const auto folder = saving.save_state();
  const auto message = [&](Accelerator& accelerator) -> std::string {
    try {
      accelerator.load_state(folder);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  };
  Accelerator without_optimizer(options);
  without_optimizer.prepare(net);
  EXPECT_NE(message(without_optimizer).find("holds 'optimizer'"), std::string::npos);
  EXPECT_NE(message(without_optimizer).find("load_model(*net, folder / \"model.safetensors\")"), std::string::npos);
  Accelerator with_schedule(options);
  Noisy second;
  with_schedule.prepare(second, torch::optim::AdamW(second->parameters(), base_rate), cosine_with_warmup(1, 2));
  EXPECT_NE(message(with_schedule).find("has no 'scheduler'"), std::string::npos);
}

TEST(AcceleratorState, NamesGoOnAfterAResumeAndOldOnesGo) {
  const TemporaryFolder scratch;
  const RunOptions options{.accelerator = {.project = {.project_dir = scratch.path(), .retention = {.keep_last = 2}},
                                           .communicator = Communicator()}};
  {
    TrainingRun run(options);
    EXPECT_FALSE(run.accelerator.load_latest_state());
    run.train(3, [&](std::int64_t) { run.accelerator.save_state(); });
  }
  TrainingRun run(options);
  const auto info = run.accelerator.load_latest_state();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->folder.filename(), "checkpoint_2_step_3");
  EXPECT_EQ(info->step, 3);
  EXPECT_EQ(run.accelerator.save_state().filename(), "checkpoint_3_step_3");
  std::vector<std::string> names;
  for (const auto& left : CheckpointFolder(scratch.path() / "checkpoints").all())
    names.push_back(left.folder.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"checkpoint_2_step_3", "checkpoint_3_step_3"}));
}

TEST(AcceleratorState, RefusesNamesAndPlacesThatCannotBe) {
  Accelerator accelerator({.communicator = Communicator()});
  Counter counter;
  EXPECT_THROW(accelerator.register_for_checkpointing("with/slash", counter), UsageError);
  accelerator.register_for_checkpointing("counter", counter);
  EXPECT_THROW(accelerator.register_for_checkpointing("counter", counter), UsageError);
  EXPECT_THROW(accelerator.save_state(), UsageError);
  EXPECT_THROW(accelerator.load_latest_state(), UsageError);
}

// The state of one rank cannot be saved: all ranks throw, and no rank waits, also in a pass that is open.
const RankCase one_rank_cannot_save("one_rank_cannot_save", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  Accelerator accelerator(
      {.project = {.project_dir = shared_folder(scratch, communicator)}, .communicator = communicator});
  struct Broken final : Stateful {
    StateDict state_dict() const override { throw std::runtime_error("no state today"); }
    void load_state_dict(const StateDict&) override {}
  } broken;
  Counter counter;
  if (communicator.rank() == 1) {
    accelerator.register_for_checkpointing("object", broken);
  } else {
    accelerator.register_for_checkpointing("object", counter);
  }
  // save_state() synchronizes a pass that only nested passes have reached.
  torch::nn::Linear layer(3, 3);
  accelerator.prepare(layer, torch::optim::SGD(layer->parameters(), 0.1));
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  torch::autograd::grad({Segment::apply(x, layer).sum()}, {x});
  try {
    accelerator.save_state();
    FAIL() << "saved";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1: no state today"), std::string::npos) << error.what();
  }
  accelerator.wait_for_everyone();
});
TEST(AcceleratorState, ARankThatCannotSaveIsNamedOnAll) {
  one_rank_cannot_save.on_threads({2});
  one_rank_cannot_save.on_processes({3});
}

}  // namespace
}  // namespace tutti::test::accelerator_state_test
