// Programs that write parameters between a backward pass and the step, on 1 to 3 ranks in threads.
#include "sync/loop.h"
#include "tutti/core/error.h"

namespace tutti::test::written_parameters_test {
namespace {

// Every third window is shorter than the automatic policy has learned: the step synchronizes it, after the decay.
struct DecayByHand : OneModel {
  using OneModel::OneModel;
  void iterate(int i) {
    const int micro_batches = i % 3 == 2 ? 2 : 4;
    for (int part = 0; part < micro_batches; ++part) {
      const auto scope = stage.micro_batch({&model}, part == micro_batches - 1);
      model.backward(loss(10 * i + part) * stage.share(micro_batches));
      if (part < micro_batches - 1) continue;
      {
        const at::NoGradGuard no_grad;
        for (at::Tensor& parameter : net->parameters()) parameter.mul_(0.99);
      }
      model.step();
      model.zero_grad();
    }
  }
};
TEST(WrittenParameters, WeightDecayByHandBeforeTheStep) {
  expect_one_process_results<DecayByHand>(9);
}

// The gradients are those of the rank until the prepared optimizer's step.
TEST(WrittenParameters, AStepOfAnUnpreparedOptimizerBeforeTheStepIsAMismatch) {
  for (const int ranks : {2, 3}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      const Stage stage(communicator, RunMode::plain, SyncPolicy::automatic);
      OneModel loop(stage);
      for (int i = 0; i < 3; ++i) {
        loop.loss(2 * i).backward();
        loop.loss(2 * i + 1).backward();
        loop.model.step();
        loop.model.zero_grad();
      }
      loop.loss(6).backward();
      loop.model.raw->step();
      EXPECT_THROW(loop.model.step(), MismatchError);
    });
  }
}

}  // namespace
}  // namespace tutti::test::written_parameters_test
