// accumulate() over a model with an optimizer whose parameters are all frozen. 1 and 2 ranks.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <string>

#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::frozen_optimizer_test {
namespace {

// The frozen optimizer steps at the ends of windows, as the other one does.
const RankCase frozen_layer("an_optimizer_of_a_frozen_layer", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  for (const bool reproducible : {false, true}) {
    const std::string folder = communicator.broadcast_object(scratch.path().string());
    AcceleratorOptions options{.communicator = communicator};
    if (reproducible) {
      options.reproducible = ReproducibleOptions{.micro_batches = 2 * communicator.size()};
    } else {
      options.gradient_accumulation_steps = 2;
    }
    Accelerator accelerator(options);
    Mlp net;
    for (const at::Tensor& parameter : net->second->parameters()) parameter.requires_grad_(false);
    auto [model, trained, trained_schedule, frozen, frozen_schedule] =
        accelerator.prepare(net, torch::optim::SGD(net->first->parameters(), 0.1), linear_with_warmup(0, 100),
                            torch::optim::SGD(net->second->parameters(), 0.1), linear_with_warmup(0, 100));
    for (std::int64_t pass = 0; pass < 6; ++pass) {
      const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      for (Optimizer* optimizer : {&trained, &frozen}) optimizer->step();
      trained_schedule.step();
      frozen_schedule.step();
      for (Optimizer* optimizer : {&trained, &frozen}) optimizer->zero_grad();
    }
    EXPECT_GT(frozen_schedule.position(), 0);
    EXPECT_EQ(frozen_schedule.position(), trained_schedule.position());
    EXPECT_EQ(frozen.last_step_rates(), trained.last_step_rates());
    const auto saved = accelerator.save_state({.folder = folder + (reproducible ? "/reproducible" : "/steps")});
    if (communicator.rank() == 0) {
      EXPECT_EQ(read_checkpoint_info(saved).step, 3);
    }
  }
});
TEST(FrozenOptimizer, StepsAtTheEndsOfWindows) {
  frozen_layer.on_processes({1, 2});
}

}  // namespace
}  // namespace tutti::test::frozen_optimizer_test
