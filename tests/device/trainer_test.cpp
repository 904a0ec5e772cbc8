// Ranks: 1 or 2 as threads, each with a simulated device. The Trainer reads losses and norms late.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/slow_device.h"
#include "support/simulated_device/ranks.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/train/callbacks/nan_guard.h"
#include "tutti/tutti.h"

namespace tutti::test::device_trainer_test {
namespace {

/// The Trainer's batches. They stay on the CPU, because copying them is not the Trainer's.
struct Numbers {
  std::size_t size() const { return 64; }
  at::Tensor get_batch(const std::vector<std::size_t>& indices) const {
    return at::zeros({static_cast<std::int64_t>(indices.size())});
  }
};

struct Training {
  TrainerOptions options{};
  std::optional<int> bad_step{};  ///< whose loss is NaN on the last rank
  std::vector<std::shared_ptr<Callback>> callbacks{};
  std::filesystem::path folder{};
};

/// Trains a small model on `device`, on inputs that are there.
void train(const Communicator& communicator, at::Device device, const Training& run) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .project = {.project_dir = run.folder}, .communicator = communicator});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::GELU(), torch::nn::Linear(8, 1));
  fill(*net, 1);
  net->to(device);
  auto loader = accelerator.data_loader(Numbers(), {.batch_size = 2});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 4; ++i) {
    const auto seed = static_cast<std::uint64_t>(10 * i + communicator.rank());
    inputs.push_back(at::randn({2, 4}, at::detail::createCPUGenerator(seed)).to(device));
  }
  int micro_batch = 0;
  Trainer<torch::nn::Sequential, DataLoader<Numbers>> trainer(
      accelerator, net, optimizer, std::nullopt, loader,
      {.loss =
           [&](torch::nn::Sequential& sequential, at::Tensor&) {
             const at::Tensor loss =
                 sequential->forward(inputs[static_cast<std::size_t>(micro_batch % 4)]).square().mean();
             const int step = micro_batch++ / 2 + 1;
             const bool is_bad = step == run.bad_step && communicator.rank() == communicator.size() - 1;
             return is_bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
           }},
      run.options);
  for (const auto& callback : run.callbacks) trainer.add_callback(callback);
  trainer.fit();
}

TrainerOptions options(std::int64_t max_steps, std::int64_t log_every) {
  return {.max_steps = max_steps,
          .max_grad_norm = 0.5,
          .log_every = log_every,
          .stop_on_signal = false,
          .progress_bar = false};
}

struct Recorder final : Callback {
  std::vector<StepMetrics> steps;
  std::vector<LateValue> local_losses;
  void on_optimizer_step_start(TrainerContext& trainer) override { local_losses.push_back(trainer.local_loss()); }
  void on_optimizer_step_end(TrainerContext& trainer) override { steps.push_back(trainer.metrics()); }
};

/// Counts the waits of all ranks in each optimizer step.
struct Waits final : Callback {
  explicit Waits(std::vector<std::int64_t>* counted) : waits(counted) {}
  void on_step_start(TrainerContext& trainer) override {
    if (micro_batches++ % 2 != 0) return;
    trainer.accelerator().wait_for_everyone();
    if (trainer.accelerator().is_main_process()) simulated::reset_counts();
    trainer.accelerator().wait_for_everyone();
  }
  void on_step_end(TrainerContext& trainer) override {
    if (micro_batches % 2 != 0) return;
    trainer.accelerator().wait_for_everyone();
    if (trainer.accelerator().is_main_process()) waits->push_back(simulated::counts().all_waits());
    trainer.accelerator().wait_for_everyone();
  }
  std::vector<std::int64_t>* waits;
  int micro_batches = 0;
};

class DeviceTrainer : public testing::TestWithParam<int> {};

TEST_P(DeviceTrainer, WaitsOnceInAStepThatIsLogged) {
  const SlowKernels slow(200);  // values are not there by chance when they are read
  std::vector<std::int64_t> waits;
  run_simulated_ranks({.size = GetParam()}, [&](const Communicator& communicator, at::Device device) {
    train(communicator, device, {.options = options(7, 3), .callbacks = {std::make_shared<Waits>(&waits)}});
  });
  ASSERT_GE(waits.size(), 6U);
  for (const std::size_t plain : {1, 3, 4}) EXPECT_EQ(waits[plain], 0) << plain;
  for (const std::size_t logged : {2, 5}) EXPECT_LE(waits[logged], GetParam()) << logged;
}

TEST_P(DeviceTrainer, MetricsEqualThoseOfTheCpu) {
  const auto record = [&](bool on_device) {
    const auto recorder = std::make_shared<Recorder>();
    run_simulated_ranks({.size = GetParam()}, [&](const Communicator& communicator, at::Device device) {
      const auto own = communicator.rank() == 0 ? recorder : std::make_shared<Recorder>();
      train(communicator, on_device ? device : at::Device(at::kCPU), {.options = options(6, 4), .callbacks = {own}});
      for (const StepMetrics& step : own->steps) (void)static_cast<double>(step.loss);  // while the ranks exist
    });
    return recorder;
  };
  const auto host = record(false);
  const auto there = record(true);
  ASSERT_EQ(there->steps.size(), 6U);
  for (std::size_t i = 0; i < host->steps.size(); ++i) {
    EXPECT_FALSE(host->steps[i].loss.is_late());
    EXPECT_TRUE(there->steps[i].loss.is_late());
    EXPECT_NEAR(there->steps[i].loss, host->steps[i].loss, 1e-5);
    EXPECT_NEAR(there->steps[i].grad_norm_pre_clip, host->steps[i].grad_norm_pre_clip, 1e-4);
    EXPECT_NEAR(there->steps[i].grad_norm_post_clip, host->steps[i].grad_norm_post_clip, 1e-4);
    EXPECT_NEAR(there->local_losses[i], host->local_losses[i], 1e-5);
  }
  EXPECT_NEAR(*there->steps[5].weight_norm, *host->steps[5].weight_norm, 1e-3);
}

/// Returns the error of all ranks, which must be the same.
std::string error_with_nan_guard(int ranks, const Training& run) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_simulated_ranks({.size = ranks}, [&](const Communicator& communicator, at::Device device) {
    Training own = run;
    own.callbacks.push_back(std::make_shared<NanGuard>());
    std::string error;
    try {
      train(communicator, device, own);
    } catch (const NonFiniteError& caught) {
      error = caught.what();
    }
    const std::lock_guard lock(mutex);
    errors.push_back(error);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

TEST_P(DeviceTrainer, NanGuardNamesTheStepAndTheRankOneStepLate) {
  const auto recorder = std::make_shared<Recorder>();
  Training run{.options = options(9, 0), .bad_step = 3};
  if (GetParam() == 1) run.callbacks = {recorder};
  const std::string error = error_with_nan_guard(GetParam(), run);
  EXPECT_NE(error.find("step 3: the loss is not finite on rank " + std::to_string(GetParam() - 1)), std::string::npos)
      << error;
  EXPECT_NE(error.find("have taken this step"), std::string::npos) << error;
  if (GetParam() == 1) {
    EXPECT_EQ(recorder->steps.size(), 3U) << "the fourth step is not taken";
  }
}

TEST_P(DeviceTrainer, NanGuardChecksTheLastStepAndBeforeCheckpoints) {
  EXPECT_NE(error_with_nan_guard(GetParam(), {.options = options(3, 0), .bad_step = 3}).find("step 3"),
            std::string::npos);
  const TemporaryFolder folder;
  TrainerOptions saves = options(9, 0);
  saves.save_every = 3;
  EXPECT_NE(error_with_nan_guard(GetParam(), {.options = saves, .bad_step = 3, .folder = folder.path()}).find("step 3"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "checkpoints" / "checkpoint_0"));
  EXPECT_EQ(error_with_nan_guard(GetParam(), {.options = options(3, 0)}), "");
}

TEST_P(DeviceTrainer, AStopRequestActsInItsStep) {
  struct Stops final : Callback {
    void on_optimizer_step_start(TrainerContext& trainer) override {
      if (trainer.metrics().global_step == 3) trainer.stop();
    }
    void on_fit_end(TrainerContext& trainer) override { EXPECT_EQ(trainer.global_step(), 3); }
  };
  run_simulated_ranks({.size = GetParam()}, [&](const Communicator& communicator, at::Device device) {
    train(communicator, device, {.options = options(9, 0), .callbacks = {std::make_shared<Stops>()}});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceTrainer, testing::Values(1, 2));

}  // namespace
}  // namespace tutti::test::device_trainer_test
