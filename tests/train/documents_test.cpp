// The loops of the documents, unchanged.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::documents_test {
namespace {

struct Pairs {
  std::int64_t count;
  std::vector<Batch> get_batch(const std::vector<std::size_t>& indices) const {
    std::vector<Batch> batches;
    for (const std::size_t index : indices) batches.push_back(batch_of(static_cast<std::int64_t>(index)));
    return batches;
  }
  std::size_t size() const { return static_cast<std::size_t>(count); }
};

/// One process over all micro-batches of a window: the expected result of every loop below.
void train_reference(Mlp& model, torch::optim::Optimizer& optimizer, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = first; i < first + count; ++i) {
    const Batch batch = batch_of(i);
    (loss_of(model->forward(batch.input), batch.target) / static_cast<double>(count)).backward();
  }
  optimizer.step();
  optimizer.zero_grad();
}

// Gradient synchronization guide: no_sync on all but the last batch.
const RankCase guide_no_sync("guide_no_sync", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp reference, net;
  auto [ddp_model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto dataloader = accelerator.data_loader(Pairs{4 * communicator.size()}, {.batch_size = 1});
  std::int64_t index = 0;
  for (const auto& batch : dataloader) {
    const auto& [inputs, targets] = batch[0];
    if (index != dataloader.size() - 1) {
      auto quiet = accelerator.no_sync(ddp_model);
      auto outputs = ddp_model->forward(inputs);
      auto loss = loss_of(outputs, targets);
      accelerator.backward(loss);
    } else {
      auto outputs = ddp_model->forward(inputs);
      auto loss = loss_of(outputs, targets);
      accelerator.backward(loss);
    }
    ++index;
  }
  EXPECT_EQ(accelerator.stats().syncs, 1);
  for (std::int64_t i = 0; i < 4 * communicator.size(); ++i) {
    const Batch batch = batch_of(i);
    (loss_of(reference->forward(batch.input), batch.target) / static_cast<double>(communicator.size())).backward();
  }
  EXPECT_TRUE(close(gradients_of(*ddp_model), gradients_of(*reference)));
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_FALSE(ddp_model->first->weight.grad().defined());
});
TEST(Documents, GuideNoSync) {
  guide_no_sync.everywhere();
}

// no_sync() around backward only, which has no effect in PyTorch. In tutti it is enough.
const RankCase guide_misplaced("guide_misplaced", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp reference, net;
  auto [ddp_model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const std::int64_t ranks = communicator.size();
  for (std::int64_t index = 0; index < 4; ++index) {
    const Batch batch = batch_of(index * ranks + communicator.rank());
    auto loss = loss_of(ddp_model->forward(batch.input), batch.target);
    auto quiet = accelerator.no_sync(ddp_model, index != 3);
    accelerator.backward(loss);
  }
  EXPECT_EQ(accelerator.stats().syncs, 1);
  for (std::int64_t i = 0; i < 4 * ranks; ++i) {
    const Batch batch = batch_of(i);
    (loss_of(reference->forward(batch.input), batch.target) / static_cast<double>(ranks)).backward();
  }
  EXPECT_TRUE(close(gradients_of(*ddp_model), gradients_of(*reference)));
});
TEST(Documents, NoSyncAroundBackwardOnlyIsEnough) {
  guide_misplaced.everywhere();
}

// Gradient synchronization guide: accumulate, zero_grad at the top of the scope and at its end.
const RankCase guide_accumulate("guide_accumulate", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp reference, net;
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto dataloader = accelerator.data_loader(Pairs{5 * communicator.size()}, {.batch_size = 1});
  for (const auto& batch : dataloader) {
    auto window = accelerator.accumulate(model);
    optimizer.zero_grad();
    const auto& [inputs, targets] = batch[0];
    auto outputs = model->forward(inputs);
    auto loss = loss_of(outputs, targets);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  const std::int64_t ranks = communicator.size();
  train_reference(reference, reference_optimizer, 0, 2 * ranks);
  train_reference(reference, reference_optimizer, 2 * ranks, 2 * ranks);
  train_reference(reference, reference_optimizer, 4 * ranks, ranks);
  EXPECT_TRUE(close(model->parameters(), reference->parameters()));
  EXPECT_EQ(accelerator.stats().syncs, 3);
});
TEST(Documents, GuideAccumulate) {
  guide_accumulate.everywhere();
}

// The English guide's snippet has no step. zero_grad() at the beginning of a window clears the window before.
const RankCase guide_without_step("guide_without_step", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp reference, net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto dataloader = accelerator.data_loader(Pairs{4 * communicator.size()}, {.batch_size = 1});
  for (const auto& batch : dataloader) {
    auto window = accelerator.accumulate(model);
    optimizer.zero_grad();
    const auto& [inputs, targets] = batch[0];
    auto outputs = model->forward(inputs);
    auto loss = loss_of(outputs, targets);
    accelerator.backward(loss);
  }
  for (std::int64_t i = 2 * communicator.size(); i < 4 * communicator.size(); ++i) {
    const Batch batch = batch_of(i);
    (loss_of(reference->forward(batch.input), batch.target) / (2.0 * communicator.size())).backward();
  }
  EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference)));
});
TEST(Documents, GuideWithoutStep) {
  guide_without_step.everywhere();
}

// The plain loop of the Local SGD guide and of seed 002: the program divides the loss and marks no passes.
const RankCase plain_loop("plain_loop", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp reference, net;
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), LrSchedule([](std::int64_t) { return 1.0; }));
  const int gradient_accumulation_steps = 2;
  auto training_dataloader = accelerator.data_loader(Pairs{8 * communicator.size()}, {.batch_size = 1});
  std::int64_t index = 0;
  for (const auto& batch : training_dataloader) {
    const auto& [inputs, targets] = batch[0];
    auto outputs = model->forward(inputs);
    auto loss = loss_of(outputs, targets);
    loss = loss / gradient_accumulation_steps;
    accelerator.backward(loss);
    if ((index + 1) % gradient_accumulation_steps == 0) {
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    ++index;
  }
  const std::int64_t ranks = communicator.size();
  for (int window = 0; window < 4; ++window) {
    train_reference(reference, reference_optimizer, window * 2 * ranks, 2 * ranks);
  }
  EXPECT_TRUE(close(model->parameters(), reference->parameters()));
  EXPECT_EQ(accelerator.stats().syncs, 2 + 2 + 2 + 1);
  EXPECT_EQ(scheduler.position(), 4);
});
TEST(Documents, PlainLoop) {
  plain_loop.everywhere();
}

// The annotated train step: no_sync on all but each fourth step, accelerator.backward divides.
const RankCase annotated_step("annotated_step", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 4, .communicator = communicator});
  Mlp reference, net;
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const std::int64_t ranks = communicator.size();
  for (std::int64_t current_global_step = 0; current_global_step < 8; ++current_global_step) {
    const bool should_sync = (current_global_step + 1) % accelerator.gradient_accumulation_steps() == 0;
    {
      auto ctx = accelerator.no_sync(model, !should_sync);
      const Batch batch = batch_of(current_global_step * ranks + communicator.rank());
      auto loss = loss_of(model->forward(batch.input), batch.target);
      accelerator.backward(loss);
    }
    if (should_sync) {
      EXPECT_TRUE(accelerator.clip_grad_norm_(model, 1e9).has_value());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  train_reference(reference, reference_optimizer, 0, 4 * ranks);
  train_reference(reference, reference_optimizer, 4 * ranks, 4 * ranks);
  EXPECT_TRUE(close(model->parameters(), reference->parameters()));
  EXPECT_EQ(accelerator.stats().syncs, 2);
});
TEST(Documents, AnnotatedTrainStep) {
  annotated_step.everywhere();
}

}  // namespace
}  // namespace tutti::test::documents_test
