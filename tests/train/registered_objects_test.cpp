// Objects that a program, a Trainer and its callbacks register for checkpoints. 1 and 2 ranks.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <string>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"

namespace tutti::test::registered_objects_test {
namespace {

AcceleratorOptions alone(const std::filesystem::path& folder) {
  return {.project = {.project_dir = folder}, .communicator = Communicator()};
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

TEST(RegisteredObjects, ARegistrationEndsWithTheObject) {
  const TemporaryFolder scratch;
  Accelerator accelerator(alone(scratch.path()));
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  {
    Counter counter;
    accelerator.register_for_checkpointing("counter", counter);
    const Counter copy = counter;
    accelerator.save_state({.folder = scratch.path() / "with"});
  }
  accelerator.save_state({.folder = scratch.path() / "without"});
  EXPECT_FALSE(read_checkpoint(scratch.path() / "without").shared.contains("object_counter"));
  accelerator.load_state(scratch.path() / "without");
  expect_refused([&] { accelerator.load_state(scratch.path() / "with"); }, "holds 'object_counter'");
  Counter counter;
  accelerator.register_for_checkpointing("counter", counter);
  expect_refused(
      [&] { accelerator.load_state(scratch.path() / "without"); },
      "has no 'object_counter', which this program has in addition to what was saved: register it after load_state()");
  accelerator.load_state(scratch.path() / "with");
  expect_refused<UsageError>([&] { accelerator.register_for_checkpointing("x", std::shared_ptr<Stateful>()); }, "null");
}

const RankCase registered_by_rank("registered_objects_by_rank", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  for (const bool local : {true, false}) {
    AcceleratorOptions options{.communicator = communicator};
    if (local) options.ignored_parameters = {"first"};
    Accelerator accelerator(options);
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    Counter counter;
    counter.value = 7 + communicator.rank();
    accelerator.register_for_checkpointing("counter", counter);
    accelerator.save_state({.folder = folder / (local ? "local" : "equal")});
    counter.value = 0;
    accelerator.load_state(folder / (local ? "local" : "equal"));
    EXPECT_EQ(counter.value, 7 + communicator.rank());
  }
  communicator.barrier().wait();
});
TEST(RegisteredObjects, ARegisteredObjectThatDiffersIsSavedByEachRank) {
  registered_by_rank.on_threads({1, 2});
}

// Earlier versions saved registered objects on rank 0 only.
TEST(RegisteredObjects, ARegisteredObjectWithoutAStateOfItsRankGetsThatOfRank0) {
  const TemporaryFolder scratch;
  Accelerator accelerator({.ignored_parameters = {"first"}, .communicator = Communicator()});
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Counter counter;
  counter.value = 7;
  accelerator.register_for_checkpointing("counter", counter);
  accelerator.save_state({.folder = scratch.path() / "saved"});
  const Checkpoint saved = read_checkpoint(scratch.path() / "saved");
  CheckpointContent earlier{.shared = saved.shared};
  for (const auto& [name, value] : saved.per_rank.front().values()) {
    if (!name.starts_with("object_")) earlier.per_rank.set(name, value);
  }
  write_checkpoint(scratch.path() / "earlier", earlier, Communicator());
  counter.value = 0;
  accelerator.load_state(scratch.path() / "earlier");
  EXPECT_EQ(counter.value, 7);
}

TEST(RegisteredObjects, ATrainerAndItsCallbacksEndTheirRegistrations) {
  Accelerator accelerator({.communicator = Communicator()});
  auto loader = accelerator.data_loader(Samples{22}, {.batch_size = 2});
  Noisy net(0);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05));
  struct Named final : Callback {
    std::string name() const override { return "named"; }
  };
  const auto callback = std::make_shared<Named>();
  for (int i = 0; i < 2; ++i) {
    Trainer trainer(
        accelerator, model, optimizer, std::nullopt, loader,
        {.loss = [](Noisy& noisy, Batch& batch) { return loss_of(noisy->forward(batch.input), batch.target); }},
        quiet({.max_steps = 2}));
    EXPECT_NO_THROW(trainer.add_callback(callback));
    EXPECT_NO_THROW(trainer.fit());
  }
}

// The trackers of a project belong to the Accelerator, not to each run.
TEST(RegisteredObjects, TwoRunsOfATrainerWriteMetricsOnce) {
  const TemporaryFolder scratch;
  TrainerRun run(alone(scratch.path()), {.max_steps = 2, .tensorboard = true});
  run.trainer.fit();
  run.trainer.fit();
  run.accelerator.log({{"after", 1.5}}, 2);
  const std::string metrics = content_of(scratch.path() / "metrics.jsonl");
  const auto first = metrics.find("\"after\"");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(metrics.find("\"after\"", first + 1), std::string::npos);
  const std::filesystem::directory_iterator events(scratch.path() / "tensorboard");
  EXPECT_EQ(std::distance(begin(events), end(events)), 1);
}

}  // namespace
}  // namespace tutti::test::registered_objects_test
