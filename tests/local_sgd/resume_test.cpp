// A run that is interrupted after any step and resumed in a new algorithm ends with the bits of an uninterrupted run. 1
// to 4 ranks as threads, 3 as processes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <optional>

#include "local_sgd/local_run.h"
#include "support/process_case.h"
#include "support/ranks.h"
#include "tutti/core/error.h"

namespace tutti::test::resume_test {
namespace {

struct Case {
  std::string name;
  RunOptions options;
};

const std::vector<Case>& cases() {
  const auto diloco = OuterOptimizer::diloco;
  static const std::vector<Case> all{
      {"local SGD", {.updates = {.local_steps = 4}}},
      {"local SGD, bf16", {.updates = {.local_steps = 4, .wire = WireFormat::bf16}}},
      {"post-local", {.updates = {.local_steps = 3, .warmup_steps = 3, .outer_optimizer = diloco}}},
      {"SlowMo", {.updates = {.local_steps = 4, .outer_optimizer = OuterOptimizer::slowmo}, .momentum = 0.9}},
      {"DiLoCo, Adam, int8",
       {.updates = {.local_steps = 4, .outer_optimizer = diloco, .wire = WireFormat::int8}, .adam = true}},
      {"averaged momentum",
       {.updates = {.local_steps = 4, .state_sync = {.momentum = MomentumRule::average}}, .momentum = 0.9}},
      {"doubles", {.updates = {.local_steps = 4, .outer_optimizer = diloco}, .dtype = at::kDouble}},
      {"hierarchical", {.updates = {.local_steps = 4, .node_sync_steps = 2}}},
      {"hierarchical DiLoCo, int8",
       {.updates = {.local_steps = 4, .outer_optimizer = diloco, .node_sync_steps = 2, .wire = WireFormat::int8}}},
      {"streaming",
       {.updates = {.local_steps = 6, .outer_optimizer = diloco, .streaming = {.fragments = 2, .overlap_steps = 2}}}},
      {"streaming, mixed, int8",
       {.updates = {.local_steps = 6,
                    .outer_optimizer = diloco,
                    .streaming = {.fragments = 3, .overlap_steps = 1, .mix = 0.25},
                    .wire = WireFormat::int8}}},
      {"streaming, progress kept, bf16",
       {.updates = {.local_steps = 6,
                    .outer_optimizer = diloco,
                    .streaming = {.fragments = 2, .overlap_steps = 2, .keep_local_progress = true},
                    .wire = WireFormat::bf16},
        .adam = true}},
      {"overlapped local SGD", {.updates = {.local_steps = 4, .streaming = {.overlap_steps = 3}}}},
  };
  return all;
}

void step(LocalRun& run) {
  run.step(1 + run.rank + run.done % 3);  // weights that change
}

/// Interrupts the run before each step, or before one step.
void check(const Communicator& communicator, const Case& of, int steps, int finish_after,
           std::optional<int> only = std::nullopt) {
  const auto train = [&](LocalRun& run, int until) {
    while (run.done < until) {
      step(run);
      if (run.done == finish_after) run.finish();
    }
  };
  LocalRun whole(communicator, of.options);
  train(whole, steps);
  whole.finish();
  for (int interrupted = only.value_or(0); interrupted < (only ? *only + 1 : steps); ++interrupted) {
    SCOPED_TRACE(of.name + ", interrupted after step " + std::to_string(interrupted));
    LocalRun first(communicator, of.options);
    train(first, interrupted);
    const StateDict saved = first.save();
    LocalRun second(communicator, of.options);
    step(second);  // loading replaces this step
    second.restore(saved);
    train(second, steps);
    second.finish();
    EXPECT_TRUE(same_bits(second.values(), whole.values()));
    EXPECT_TRUE(same_bits({second.buffer, second.counter}, {whole.buffer, whole.counter}));
    // Saving changed nothing in the run that was saved.
    train(first, steps);
    first.finish();
    EXPECT_TRUE(same_bits(first.values(), whole.values()));
  }
}

TEST(Resume, EveryMethodResumesFromEveryStepWithTheSameBits) {
  for (const auto& [size, nodes] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 1), std::pair(4, 2)}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    run_thread_ranks(
        size,
        [](const Communicator& communicator) {
          for (const Case& of : cases()) check(communicator, of, 13, 7);
        },
        {.timeout = std::chrono::seconds(30)}, nodes);
  }
}

const ProcessCase every_method("resume: every method", [](const Communicator& communicator) {
  for (const Case& of : cases()) check(communicator, of, 9, 7, 5);
});
TEST(OnProcesses, EveryCaseOfLocalSGDHolds) {
  run_process_cases();
}

TEST(Resume, RefusesAStateThatDoesNotFit) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const RunOptions diloco{.updates = {.local_steps = 4, .outer_optimizer = OuterOptimizer::diloco}};
    LocalRun run(communicator, diloco);
    run.steps(3);
    const StateDict good = copy_to_cpu(run.algorithm->state_dict());
    const Tensors anchor{good.get<at::Tensor>("fragment.0.anchor")};
    const auto refused = [&](const std::string& name, const StateValue& value) {
      StateDict bad = good;
      bad.set(name, value);
      EXPECT_THROW(run.algorithm->load_state_dict(bad), CheckpointError) << name;
    };
    refused("rank", std::int64_t{1} - communicator.rank());
    refused("size", std::int64_t{3});
    refused("fragments", std::int64_t{2});
    refused("parameters", std::int64_t{1});  // other names, or another order
    refused("warmed", std::int64_t{1});
    refused("position", std::int64_t{-1});
    refused("since_node.weight", -1.0);
    refused("fragment.0.dirty", 1.0);
    refused("fragment.0.anchor", at::zeros({3}));
    refused("fragment.0.momentum", at::zeros({1}, at::kDouble));
    refused("fragment.0.lost", at::zeros({1}));  // of another wire format
    EXPECT_THROW(run.algorithm->load_state_dict(StateDict()), CheckpointError);
    // Nothing was loaded.
    EXPECT_TRUE(same_bits({run.algorithm->state_dict().get<at::Tensor>("fragment.0.anchor")}, anchor));
    run.steps(1);
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));

    LocalRun average(communicator, {.updates = {.local_steps = 4}});
    EXPECT_THROW(average.algorithm->load_state_dict(good), CheckpointError);
  });
}

TEST(Resume, ReplicasMayDifferAfterLoadingACheckpoint) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const at::Tensor parameter = at::zeros({3}).add_(communicator.rank()).set_requires_grad(true);
    const std::vector<NamedParameter> named{{"p", parameter}};
    EXPECT_THROW(LocalSgdAlgorithm(named, {}, nullptr, communicator.duplicate("a"), {}), MismatchError);
    LocalSgdAlgorithm algorithm(named, {}, nullptr, communicator.duplicate("b"), {.check_replicas = false});
    EXPECT_FALSE(algorithm.synchronous());
  });
}

}  // namespace
}  // namespace tutti::test::resume_test
