// Checkpoints of a program's optimizer, whose state is created by its first step.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <utility>

#include "optim/lazy_optimizer.h"
#include "support/rank_case.h"
#include "train/error_texts.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::custom_optimizer_test {
namespace {

struct LazyRun {
  explicit LazyRun(const Communicator& communicator)
      : accelerator({.communicator = communicator}), prepared(accelerator.prepare(net, Lazy(net->parameters()))) {}
  void step() {
    const Batch batch = batch_of(accelerator.rank());
    accelerator.backward(loss_of(net->forward(batch.input), batch.target));
    std::get<1>(prepared).step();
    std::get<1>(prepared).zero_grad();
  }
  Lazy& optimizer() { return dynamic_cast<Lazy&>(std::get<1>(prepared).inner()); }

  Accelerator accelerator;
  Mlp net;
  std::tuple<Mlp&, Optimizer> prepared;
};

const RankCase lazy_resumes("lazy_optimizer_resumes", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  LazyRun whole(communicator);
  whole.accelerator.save_state({.folder = folder / "before"});
  const std::string start = bytes_of(*whole.net);
  whole.step();
  whole.accelerator.save_state({.folder = folder / "after"});
  whole.step();

  LazyRun resumed(communicator);
  resumed.accelerator.load_state(folder / "after");
  resumed.step();
  EXPECT_TRUE(bytes_of(*resumed.net) == bytes_of(*whole.net));
  resumed.accelerator.load_state(folder / "before");
  EXPECT_FALSE(resumed.optimizer().momentum.defined());
  EXPECT_TRUE(bytes_of(*resumed.net) == start);
  for (int i = 0; i < 2; ++i) resumed.step();
  EXPECT_TRUE(bytes_of(*resumed.net) == bytes_of(*whole.net));
  communicator.barrier().wait();
});
TEST(CustomOptimizer, ResumesBeforeAndAfterItsFirstStep) {
  lazy_resumes.on_threads({1, 2});
}

// finish() gives all ranks the momentum of rank 0, so that replicas stay equal.
const RankCase lazy_local_steps("lazy_optimizer_local_steps", [](const Communicator& communicator) {
  LazyRun run(communicator);
  LocalSGD local_sgd(run.accelerator, run.net, {.local_sgd_steps = 2});
  for (int i = 0; i < 3; ++i) {
    run.step();
    local_sgd.step();
  }
  local_sgd.finish();
  for (int i = 0; i < 2; ++i) run.step();
  const std::string own = bytes_of(*run.net);
  EXPECT_TRUE(communicator.broadcast_object(own) == own);
});
TEST(CustomOptimizer, HasTheStateOfRank0AfterLocalSteps) {
  lazy_local_steps.on_threads({1, 2, 3});
}

struct FailsToLoad final : Stateful {
  StateDict state_dict() const override {
    StateDict state;
    state.set("value", 1.0);
    return state;
  }
  void load_state_dict(const StateDict&) override {
    if (std::exchange(fails, false)) throw CheckpointError("it does not load");
  }
  bool fails = false;
};

// The last rank fails, and the others load everything before that is known.
const RankCase lazy_undo("lazy_optimizer_undo", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  LazyRun saved(communicator);
  FailsToLoad of_saved;
  saved.accelerator.register_for_checkpointing("fails", of_saved);
  saved.step();
  saved.accelerator.save_state({.folder = folder / "state"});
  for (const bool keeps_state : {false, true}) {
    LazyRun run(communicator);
    run.optimizer().keeps_state = keeps_state;
    FailsToLoad object;
    run.accelerator.register_for_checkpointing("fails", object);
    object.fails = run.accelerator.is_last_process();
    const std::string before = bytes_of(*run.net);
    expect_says(message_of<Error>([&] { run.accelerator.load_state(folder / "state"); }), "it does not load");
    EXPECT_TRUE(bytes_of(*run.net) == before);
    const bool is_restored = !keeps_state || run.accelerator.is_last_process();
    EXPECT_EQ(run.optimizer().momentum.defined(), !is_restored);
    run.accelerator.load_state(folder / "state");
    EXPECT_TRUE(run.optimizer().momentum.equal(saved.optimizer().momentum));
  }
  communicator.barrier().wait();
});
TEST(CustomOptimizer, AFailedLoadOnOneRankIsUndoneOnAll) {
  lazy_undo.on_threads({2});
}

}  // namespace
}  // namespace tutti::test::custom_optimizer_test
