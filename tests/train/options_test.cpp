// Options and calls of the Accelerator that are passed to other modules: 2 ranks as threads, 3 as processes.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "support/process_case.h"
#include "support/ranks.h"
#include "train/training_run.h"
#include "tutti/core/error.h"

namespace tutti::test::options_test {
namespace {

TEST(OnProcesses, EveryCaseOfTrainHolds) {
  run_process_cases();
}

constexpr double rate = 0.1;

/// A model and a plain SGD behind an Accelerator.
struct Loop {
  explicit Loop(AcceleratorOptions options)
      : accelerator(std::move(options)),
        prepared(accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate))) {}

  void pass(std::int64_t number = 0) {
    const Batch batch = batch_of(number * accelerator.num_processes() + accelerator.rank());
    accelerator.backward(loss_of(net->forward(batch.input), batch.target));
  }
  void step() {
    std::get<1>(prepared).step();
    std::get<1>(prepared).zero_grad();
  }

  Mlp net;
  Accelerator accelerator;
  std::tuple<Mlp&, Optimizer> prepared;
};

/// The gradients of one process over all ranks' batches of passes [0, passes), divided as in DistributedDataParallel.
std::vector<at::Tensor> expected_gradients(int ranks, std::int64_t passes) {
  Mlp reference;
  for (std::int64_t i = 0; i < passes * ranks; ++i) {
    const Batch batch = batch_of(i);
    (loss_of(reference->forward(batch.input), batch.target) / ranks).backward();
  }
  return gradients_of(*reference);
}

const ProcessCase synchronizes_when_asked("options: synchronize() and trigger", [](const Communicator& communicator) {
  Loop run({.communicator = communicator});
  {
    const auto quiet = run.accelerator.no_sync(run.net);
    run.pass(0);
    EXPECT_EQ(run.accelerator.stats().syncs, 0);
    run.accelerator.synchronize(run.net);
    EXPECT_EQ(run.accelerator.stats().syncs, 1);
    EXPECT_TRUE(close(gradients_of(*run.net), expected_gradients(communicator.size(), 1)));
  }
  run.step();
  Loop triggered({.communicator = communicator});
  {
    const auto quiet = triggered.accelerator.no_sync(triggered.net);
    triggered.pass(0);
    triggered.accelerator.trigger_sync_in_backward(triggered.net);
    triggered.pass(1);
    EXPECT_EQ(triggered.accelerator.stats().syncs, 1);
    EXPECT_TRUE(close(gradients_of(*triggered.net), expected_gradients(communicator.size(), 2)));
  }
  triggered.step();
  Mlp foreign;
  EXPECT_THROW(run.accelerator.synchronize(foreign), UsageError);
  EXPECT_THROW(run.accelerator.trigger_sync_in_backward(foreign), UsageError);
});
TEST(AcceleratorCalls, SynchronizeAndTriggerDoSoUnderNoSync) {
  synchronizes_when_asked.on_threads({2});
}

const ProcessCase checks_replicas("options: check_replicas", [](const Communicator& communicator) {
  for (const bool checked : {true, false}) {
    Loop run({.sync_policy = SyncPolicy::every_pass, .check_replicas = checked, .communicator = communicator});
    run.pass();
    run.step();
    if (communicator.rank() == 1) run.net->first->bias.data().add_(0.01);
    if (checked) {
      EXPECT_THROW(run.pass(), MismatchError);
    } else {
      EXPECT_NO_THROW(run.pass());
    }
  }
});
TEST(AcceleratorOptions, CheckReplicasDecidesWhetherTheyAreCompared) {
  checks_replicas.on_threads({2});
}

TEST(AcceleratorOptions, BucketsReachThePlan) {
  EXPECT_THROW(Loop({.buckets = {.bucket_bytes = 0}, .communicator = Communicator()}), UsageError);
  // Ranks compare the option. An error shows that it has reached the reducer.
  run_thread_ranks(2, [](const Communicator& communicator) {
    const std::int64_t bytes = communicator.rank() == 0 ? 1 << 20 : 1 << 21;
    EXPECT_THROW(Loop({.buckets = {.bucket_bytes = bytes}, .communicator = communicator}), MismatchError);
  });
}

TEST(AcceleratorOptions, RetentionIsCheckedBeforeTheFirstCheckpoint) {
  EXPECT_THROW(Accelerator({.project = {.retention = {.keep_last = 0}}, .communicator = Communicator()}), UsageError);
}

TEST(AcceleratorOptions, TheGradientCodecHalvesTheBytesBetweenNodes) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        const auto bytes = [&](const std::shared_ptr<const WireCodec>& hook) {
          Loop run({.gradient_codec = hook, .communicator = communicator});
          run.pass();
          run.step();
          return run.accelerator.stats().bytes_sent;
        };
        const auto plain = bytes(nullptr);
        EXPECT_GT(plain, 0);
        EXPECT_EQ(2 * bytes(bf16_codec()), plain);
      },
      {}, 2);
}

TEST(AcceleratorOptions, FusedOptimizersMayBeTurnedOff) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool fused : {true, false}) {
    Loop run({.fused_optimizers = fused, .communicator = Communicator()});
    run.pass();
    run.step();
    EXPECT_EQ(std::get<1>(run.prepared).not_fused_reason(), fused ? "" : "fused steps are turned off");
    results.push_back(run.net->parameters());
  }
  EXPECT_TRUE(close(results[0], results[1]));
}

const ProcessCase tracks("options: init_trackers()", [](const Communicator& communicator,
                                                        const std::filesystem::path& folder) {
  Accelerator accelerator({.project = {.project_dir = folder}, .communicator = communicator});
  accelerator.init_trackers("by hand", {{"lr", 0.25}}, 7);
  accelerator.log({{"loss", 1.5}}, 8);
  accelerator.log_text("note", "all is well", 9);
  accelerator.wait_for_everyone();
  const std::string lines = content_of(folder / "metrics.jsonl");
  for (const std::string part : {R"("run":"by hand")", R"("step":7)", R"("hyperparameters":{"lr":0.25})",
                                 R"("values":{"loss":1.5})", R"("name":"note","text":"all is well")"}) {
    const auto first = lines.find(part);
    EXPECT_NE(first, std::string::npos) << part << " is not in " << lines;
    EXPECT_EQ(lines.find(part, first + 1), std::string::npos) << "more than one rank has written " << lines;
  }
  accelerator.wait_for_everyone();
});
TEST(AcceleratorCalls, InitTrackersStartsThemOnTheMainProcess) {
  tracks.on_threads({1, 2});
}

struct Starts final : Tracker {
  explicit Starts(std::vector<std::int64_t>& steps) : steps_(steps) {}
  void start(const std::string&, const Hyperparameters&, std::int64_t step) override { steps_.push_back(step); }
  void log(std::int64_t, const Scalars&) override {}
  std::vector<std::int64_t>& steps_;
};

// A program by hand calls init_trackers() before it loads a checkpoint, as with Accelerate.
TEST(AcceleratorCalls, TrackersOfAResumedRunStartWithItsFirstValue) {
  const TemporaryFolder folder;
  std::vector<std::int64_t> steps;
  for (const bool resumes : {false, true}) {
    Accelerator accelerator({.communicator = Communicator()});
    accelerator.add_tracker(std::make_unique<Starts>(steps));
    accelerator.init_trackers("by hand");
    Mlp net;
    accelerator.prepare(net);
    resumes ? void(accelerator.load_state(folder.path() / "saved"))
            : void(accelerator.save_state({.folder = folder.path() / "saved"}));
    accelerator.log({{"loss", 1}}, resumes ? 101 : 100);
    accelerator.log({{"loss", 1}}, 102);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 100}));
}

const ProcessCase clips("options: clip_grad_norm_()", [](const Communicator& communicator) {
  for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    Loop run({.communicator = communicator});
    run.pass();
    double sum = 0;
    double largest = 0;
    for (const at::Tensor& gradient : expected_gradients(communicator.size(), 1)) {
      sum += gradient.abs().pow(std::min(type, 100.0)).sum().item<double>();
      largest = std::max(largest, gradient.abs().max().item<double>());
    }
    const double expected = std::isinf(type) ? largest : std::pow(sum, 1 / type);
    const auto norm = run.accelerator.clip_grad_norm_(run.net, expected / 4, type);
    ASSERT_TRUE(norm);
    EXPECT_NEAR(*norm, expected, 1e-4 * expected);
    // Clipped by the same norm.
    EXPECT_NEAR(*run.accelerator.clip_grad_norm_(run.net, 1e9, type), expected / 4, 1e-4 * expected);
    run.step();
  }
  // A NaN of one rank reaches every rank.
  Loop run({.communicator = communicator});
  const Batch batch = batch_of(0);
  const double factor = communicator.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  run.accelerator.backward(loss_of(run.net->forward(batch.input), batch.target) * factor);
  EXPECT_THROW(run.accelerator.clip_grad_norm_(run.net, 1.0, 2.0, true), UsageError);
  EXPECT_TRUE(std::isnan(*run.accelerator.clip_grad_norm_(run.net, 1.0)));
});
TEST(AcceleratorCalls, ClippingTakesOtherNormsAndRefusesOneThatIsNotFinite) {
  clips.on_threads({1, 2});
}

struct Counter final : Stateful {
  std::int64_t value = 0;
  StateDict state_dict() const override {
    StateDict state;
    state.set("value", value);
    return state;
  }
  void load_state_dict(const StateDict& state) override { value = state.get<std::int64_t>("value"); }
};

TEST(AcceleratorCalls, ARegisteredObjectMayBeShared) {
  const TemporaryFolder folder;
  Accelerator accelerator({.communicator = Communicator()});
  std::weak_ptr<Counter> seen;
  {
    const auto counter = std::make_shared<Counter>();
    counter->value = 42;
    seen = counter;
    accelerator.register_for_checkpointing("counter", std::shared_ptr<Stateful>(counter));
  }
  ASSERT_FALSE(seen.expired()) << "the Accelerator keeps a reference after its end";
  accelerator.save_state({.folder = folder.path() / "saved"});
  seen.lock()->value = 1;
  accelerator.load_state(folder.path() / "saved");
  EXPECT_EQ(seen.lock()->value, 42);
}

TEST(AcceleratorCalls, ASeedMayAskForDeterministicAlgorithms) {
  Accelerator accelerator({.communicator = Communicator()});
  accelerator.set_seed(1);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  accelerator.set_seed(1, {.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(PreparedOptimizer, ALearningRateIsThatOfAllGroups) {
  Mlp net;
  const std::vector<torch::optim::OptimizerParamGroup> groups{
      {net->first->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5)},
      {net->second->parameters(), std::make_unique<torch::optim::SGDOptions>(0.25)}};
  Accelerator accelerator({.communicator = Communicator()});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(groups, torch::optim::SGDOptions(0.1)));
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
  optimizer.set_learning_rate(0.125);
  EXPECT_EQ(optimizer.learning_rate(), 0.125);
  for (const auto& group : optimizer.param_groups()) EXPECT_EQ(group.options().get_lr(), 0.125);
}

constexpr int syncs = 5;
// Statistics of a synchronization: 2 n (N - 1) / N bytes, and the straggler's rank.
TEST(SyncStats, ReportTheCostOfASyncAndTheStraggler) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Loop run({.sync_policy = SyncPolicy::every_pass, .communicator = communicator});
    for (int round = 0; round < syncs; ++round) {
      // This rank works longer.
      if (communicator.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      run.pass(round);
      run.step();
    }
    const SyncStats stats = run.accelerator.stats();
    std::int64_t elements = 0;
    for (const at::Tensor& parameter : run.net->parameters()) elements += parameter.numel();
    EXPECT_EQ(stats.syncs, syncs);
    // Slots are aligned to 64 bytes.
    EXPECT_GE(stats.bytes_per_sync(), 4.0 * elements);
    EXPECT_LT(stats.bytes_per_sync(), 4.0 * elements + 64.0 * 4);
    EXPECT_EQ(stats.bytes_per_sync(), static_cast<double>(stats.bytes_sent) / syncs);
    EXPECT_EQ(stats.seconds_waiting_per_sync(), stats.seconds_waiting / syncs);
    EXPECT_TRUE(communicator.rank() == 1 || stats.seconds_waiting > 0);
    ASSERT_EQ(stats.straggler_seconds.size(), 2U);
    EXPECT_GT(stats.straggler_seconds[1], stats.straggler_seconds[0]);
  });
  EXPECT_EQ(SyncStats{}.bytes_per_sync(), 0);
  EXPECT_EQ(SyncStats{}.seconds_waiting_per_sync(), 0);
}

}  // namespace
}  // namespace tutti::test::options_test
