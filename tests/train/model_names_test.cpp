// Errors distinguish parameters of equal names in several models.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"
#include "tutti/train/accelerator.h"

namespace tutti::test {
namespace model_names_test {
namespace {

struct DiscriminatorImpl : MlpImpl {
  using MlpImpl::MlpImpl;
};
TORCH_MODULE(Discriminator);
struct GeneratorImpl : MlpImpl {
  using MlpImpl::MlpImpl;
};
TORCH_MODULE(Generator);

std::string what_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_says(const std::string& message, const std::string& words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

/// Both models have first.weight. The second model is prepared later, when the first one has its reducer.
struct Gan {
  explicit Gan(const Communicator& communicator, SyncPolicy policy = SyncPolicy::every_pass)
      : accelerator({.gradient_accumulation_steps = 2, .sync_policy = policy, .communicator = communicator}),
        d_optimizer(std::get<1>(accelerator.prepare(d, torch::optim::SGD(d->parameters(), 0.1)))),
        g_optimizer(std::get<1>(accelerator.prepare(g, torch::optim::SGD(g->parameters(), 0.1)))) {}
  template <typename Model>
  void pass(Model& model) {
    accelerator.backward(loss_of(model->forward(batch_of(0).input), batch_of(0).target));
  }

  Discriminator d;
  Generator g;
  Accelerator accelerator;
  Optimizer d_optimizer, g_optimizer;
};

const std::string of_d = "'first.weight' of model (DiscriminatorImpl)";
const std::string of_g = "'first.weight' of model_1 (GeneratorImpl)";

const RankCase changed("model_names_changed", [](const Communicator& communicator) {
  Gan gan(communicator);
  gan.g->first->weight.requires_grad_(false);
  expect_says(what_of([&] { gan.pass(gan.g); }), "parameter " + of_g + " was changed after prepare()");
  gan.d->first->weight.requires_grad_(false);
  expect_says(what_of([&] { gan.pass(gan.d); }), "parameter " + of_d + " was changed after prepare()");
});
TEST(ModelNames, AChangedParameterIsNamedWithItsModel) {
  changed.on_threads({1, 2, 3});
}

const RankCase touched("model_names_touched", [](const Communicator& communicator) {
  Gan gan(communicator, SyncPolicy::manual);
  const auto clip_and_step = [&](auto& model, Optimizer& optimizer) {
    const NoSyncScope quiet = gan.accelerator.no_sync(model);
    gan.pass(model);
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1e-3);
    optimizer.step();
  };
  expect_says(what_of([&] { clip_and_step(gan.d, gan.d_optimizer); }),
              "of model (DiscriminatorImpl) was modified before");
  gan.d_optimizer.zero_grad();
  expect_says(what_of([&] { clip_and_step(gan.g, gan.g_optimizer); }),
              "of model_1 (GeneratorImpl) was modified before");
  gan.g_optimizer.zero_grad();
});
TEST(ModelNames, ATouchedGradientIsNamedWithItsModel) {
  touched.on_threads({1, 2, 3});
}

const RankCase windows("model_names_windows", [](const Communicator& communicator) {
  Gan gan(communicator);
  const auto outer = gan.accelerator.accumulate(gan.g);
  const std::string said = what_of([&] { const auto inner = gan.accelerator.accumulate(gan.g); });
  expect_says(said, "model_1 (GeneratorImpl): accumulate() inside accumulate()");
  gan.pass(gan.g);
  gan.pass(gan.d);
  const auto scope = [&] {
    const auto inner = gan.accelerator.accumulate(gan.d);
    gan.pass(gan.d);
  };
  expect_says(what_of(scope), "model (DiscriminatorImpl): a backward pass inside accumulate()");
});
TEST(ModelNames, ErrorsAboutWindowsNameTheModel) {
  windows.on_threads({1, 2, 3});
}

const RankCase drifted("model_names_drifted", [](const Communicator& communicator) {
  Gan gan(communicator);
  if (communicator.rank() == 1) {
    const at::NoGradGuard no_grad;
    gan.g->first->weight.add_(1);
  }
  expect_says(what_of([&] { gan.pass(gan.g); }), "parameter " + of_g + " of rank 1 differs from that of rank 0");
  // A synchronization that one rank does not enter in its step.
  const auto uneven = [&] {
    gan.pass(gan.d);
    if (communicator.rank() == 0) gan.d_optimizer.step();
    gan.d_optimizer.zero_grad();
    gan.pass(gan.d);
  };
  expect_says(what_of(uneven), "model (DiscriminatorImpl): rank 0 is at optimizer step 1");
});
TEST(ModelNames, MismatchesNameTheModel) {
  drifted.on_threads({2, 3});
}

const RankCase one_model("model_names_one_model", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Generator g;
  auto [model, optimizer] = accelerator.prepare(g, torch::optim::SGD(g->parameters(), 0.1));
  model->first->weight.requires_grad_(false);
  const auto pass = [&, &model = model] { accelerator.backward(model->forward(batch_of(0).input).sum()); };
  expect_says(what_of(pass), "parameter 'first.weight' was changed after prepare()");
});
TEST(ModelNames, OneModelNeedsNoName) {
  one_model.on_threads({1, 2});
}

const RankCase ddp("model_names_ddp", [](const Communicator& communicator) {
  Discriminator d;
  const DistributedDataParallel parallel(d, communicator);
  d->first->weight.requires_grad_(false);
  const auto pass = [&] { d->forward(batch_of(0).input).sum().backward(); };
  expect_says(what_of(pass), "parameter 'first.weight' of DiscriminatorImpl was changed after prepare()");
});
TEST(ModelNames, DistributedDataParallelNamesTheClass) {
  ddp.on_threads({1, 2});
}

}  // namespace
}  // namespace model_names_test
}  // namespace tutti::test
