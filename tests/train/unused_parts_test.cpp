// accumulate() over models, or parts of one, that only some micro-batches use. 1 to 3 ranks.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <set>
#include <string>

#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::unused_parts_test {
namespace {

// Scopes of both models in which only one is trained do not weigh in the other's window.
void check_less_often(const Communicator& communicator, int steps, bool clear_first) {
  Accelerator accelerator({.gradient_accumulation_steps = steps, .communicator = communicator});
  Mlp net_a(1), net_b(2), reference(2);
  auto [a, b, optimizer_a, optimizer_b] = accelerator.prepare(net_a, net_b, torch::optim::SGD(net_a->parameters(), 0.1),
                                                              torch::optim::SGD(net_b->parameters(), 0.1));
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  const std::int64_t ranks = communicator.size();
  for (std::int64_t pass = 0; pass < 9 * steps; ++pass) {
    const Batch batch = batch_of(pass * ranks + communicator.rank());
    const auto scope = accelerator.accumulate(a, b);
    accelerator.backward(loss_of(a->forward(batch.input), batch.target));
    optimizer_a.step();
    optimizer_a.zero_grad();
    if (pass / steps % 3 != 2) continue;
    if (clear_first) optimizer_b.zero_grad();
    accelerator.backward(loss_of(b->forward(batch.input), batch.target));
    optimizer_b.step();
    if (!clear_first) optimizer_b.zero_grad();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Batch other = batch_of(pass * ranks + rank);
      (loss_of(reference->forward(other.input), other.target) / static_cast<double>(steps * ranks)).backward();
    }
    if (pass % steps != steps - 1) continue;
    sgd.step();
    sgd.zero_grad();
    EXPECT_TRUE(close(b->parameters(), reference->parameters())) << "pass " << pass;
  }
}
const RankCase less_often("less_often", [](const Communicator& communicator) {
  for (const int steps : {1, 2}) {
    for (const bool clear_first : {false, true}) check_less_often(communicator, steps, clear_first);
  }
});
TEST(UnusedParts, AModelThatIsTrainedInEveryThirdWindowHasItsOwnWeightsOnly) {
  less_often.everywhere();
}

// Two optimizers for one model, whose second layer some micro-batches do not use, with a backward() of the program.
const RankCase parts("parts_of_a_model", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net, reference;
  auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->first->parameters(), 0.1),
                                                    torch::optim::SGD(net->second->parameters(), 0.1));
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  const std::int64_t ranks = communicator.size();
  const auto loss = [](Mlp& trained, std::int64_t batch, std::int64_t window) {
    const bool uses_both = batch % 3 != 2 && window != 3;
    const at::Tensor input = batch_of(batch).input;
    return (uses_both ? trained->forward(input) : trained->first(input)).square().mean();
  };
  for (std::int64_t window = 0; window < 5; ++window) {
    for (std::int64_t pass = 2 * window; pass < 2 * window + 2; ++pass) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        (loss(reference, pass * ranks + rank, window) / static_cast<double>(2 * ranks)).backward();
      }
      const auto scope = accelerator.accumulate(model);
      loss(net, pass * ranks + communicator.rank(), window).backward();
      first.step();
      second.step();
      first.zero_grad();
      second.zero_grad();
    }
    sgd.step();
    sgd.zero_grad();
    EXPECT_TRUE(close(net->parameters(), reference->parameters())) << "window " << window;
  }
});
TEST(UnusedParts, APartOfAModelWithItsOwnOptimizerHasTheWeightsOfItsModel) {
  parts.everywhere();
}

// Loops without scopes: some passes use one layer only, on all ranks or on some.
const RankCase without_scopes("parts_without_scopes", [](const Communicator& communicator) {
  for (const SyncPolicy policy : {SyncPolicy::every_pass, SyncPolicy::automatic}) {
    Accelerator accelerator({.sync_policy = policy, .communicator = communicator});
    Mlp net, reference;
    auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->first->parameters(), 0.1),
                                                      torch::optim::SGD(net->second->parameters(), 0.1));
    torch::optim::SGD sgd(reference->parameters(), 0.1);
    const std::int64_t ranks = communicator.size();
    const auto loss = [](Mlp& trained, std::int64_t pass, std::int64_t rank) {
      const at::Tensor input = batch_of(pass * 4 + rank).input;
      const std::int64_t use = pass % 5 < 2 ? (pass + rank) % 3 : pass % 5 - 2;
      if (use == 0) return trained->forward(input).square().mean();
      if (use == 1) return trained->first(input).square().mean();
      return trained->second(at::tanh(trained->first(input)).detach()).square().mean();
    };
    const std::int64_t passes_in_step = policy == SyncPolicy::automatic ? 3 : 1;
    for (std::int64_t pass = 0; pass < 24; ++pass) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        (loss(reference, pass, rank) / static_cast<double>(ranks)).backward();
      }
      loss(net, pass, communicator.rank()).backward();
      if (pass % passes_in_step != passes_in_step - 1) continue;
      sgd.step();
      sgd.zero_grad();
      for (Optimizer* optimizer : {&first, &second}) {
        optimizer->step();
        optimizer->zero_grad();
      }
      ASSERT_TRUE(close(net->parameters(), reference->parameters())) << "pass " << pass;
    }
  }
});
TEST(UnusedParts, APartMayBeUnusedWithoutScopes) {
  without_scopes.everywhere();
}

// The second layers of both models have one optimizer, so a pass over one model synchronizes the parts of both.
const RankCase shared_optimizer("parts_that_share_an_optimizer", [](const Communicator& communicator) {
  Accelerator accelerator({.sync_policy = SyncPolicy::every_pass, .communicator = communicator});
  Mlp net_a(1), net_b(2);
  std::vector<at::Tensor> seconds = net_a->second->parameters();
  for (const at::Tensor& parameter : net_b->second->parameters()) seconds.push_back(parameter);
  accelerator.prepare(net_a, net_b, torch::optim::SGD(net_a->first->parameters(), 0.1), torch::optim::SGD(seconds, 0.1),
                      torch::optim::SGD(net_b->first->parameters(), 0.1));
  const at::Tensor input = batch_of(0).input;
  const bool uses_both = communicator.rank() == 0;
  for (Mlp* net : {&net_a, &net_b}) {
    (uses_both ? (*net)->forward(input) : (*net)->first(input)).square().mean().backward();
    for (const at::Tensor& gradient : gradients_of(**net)) {
      ASSERT_TRUE(gradient.defined());
      const at::Tensor sum = gradient.clone();
      communicator.all_reduce(sum).wait();
      EXPECT_TRUE(at::allclose(sum, gradient * communicator.size()));
    }
  }
});
TEST(UnusedParts, ModelsThatShareAnOptimizerAreOneModel) {
  shared_optimizer.everywhere();
}

// A rank that does not use the second layer synchronizes the buffers of the first one in a step, while the other ranks
// are still in backward().
const RankCase with_buffers("parts_with_buffers", [](const Communicator& communicator) {
  for (const bool in_scopes : {true, false}) {
    Accelerator accelerator({.communicator = communicator});
    torch::nn::BatchNorm1d body(4);
    torch::nn::Linear head(4, 2);
    torch::nn::Sequential net(body, head);
    auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(body->parameters(), 0.1),
                                                      torch::optim::SGD(head->parameters(), 0.1));
    auto train = [&, first = first, second = second](int pass) mutable {
      const at::Tensor hidden = body(batch_of(4 * pass + communicator.rank()).input.slice(1, 0, 4));
      (communicator.rank() == 0 ? head(hidden) : hidden).square().mean().backward();
      for (Optimizer* optimizer : {&first, &second}) {
        optimizer->step();
        optimizer->zero_grad();
      }
    };
    for (int pass = 0; pass < 4; ++pass) {
      if (in_scopes) {
        const auto scope = accelerator.accumulate(model);
        train(pass);
      } else {
        train(pass);
      }
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor sum = parameter.detach().clone();
      communicator.all_reduce(sum).wait();
      EXPECT_TRUE(at::allclose(sum, parameter * communicator.size())) << in_scopes;
    }
  }
});
TEST(UnusedParts, TheLayersOfAnUnusedPartMayHaveBuffers) {
  with_buffers.everywhere();
}

// A rank whose passes do not use the second layer steps twice in a scope.
const RankCase two_steps("parts_in_two_steps", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net, reference;
  auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->first->parameters(), 0.1),
                                                    torch::optim::SGD(net->second->parameters(), 0.1));
  torch::optim::SGD sgd(reference->parameters(), 0.1);
  const std::int64_t ranks = communicator.size();
  const auto loss = [](Mlp& trained, std::int64_t rank) {
    const at::Tensor input = batch_of(rank).input;
    return (rank == 0 ? trained->forward(input) : trained->first(input)).square().mean();
  };
  const auto scope = accelerator.accumulate(model);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) (loss(reference, rank) / static_cast<double>(ranks)).backward();
    sgd.step();
    sgd.zero_grad();
    loss(net, communicator.rank()).backward();
    for (Optimizer* optimizer : {&first, &second}) {
      optimizer->step();
      optimizer->zero_grad();
    }
    EXPECT_TRUE(close(net->parameters(), reference->parameters())) << "epoch " << epoch;
  }
});
TEST(UnusedParts, APartHasTheWeightsOfItsModelInEachWindowOfAScope) {
  two_steps.everywhere();
}

// Both models of the scopes have the weights of all scopes, with the accelerator's backward() and with the program's.
const RankCase some_scopes("models_used_by_some_scopes", [](const Communicator& communicator) {
  for (const bool of_accelerator : {true, false}) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
    Mlp net_a(1), net_b(2), reference(2);
    auto [a, b, optimizer_a, optimizer_b] = accelerator.prepare(
        net_a, net_b, torch::optim::SGD(net_a->parameters(), 0.1), torch::optim::SGD(net_b->parameters(), 0.1));
    const std::int64_t ranks = communicator.size();
    for (std::int64_t pass = 0; pass < 2; ++pass) {
      const Batch batch = batch_of(pass * ranks + communicator.rank());
      const auto scope = accelerator.accumulate(a, b);
      const auto run = [&](const at::Tensor& loss) { of_accelerator ? accelerator.backward(loss) : loss.backward(); };
      run(loss_of(a->forward(batch.input), batch.target));
      if (pass == 1) run(loss_of(b->forward(batch.input), batch.target));
    }
    for (std::int64_t index = ranks; index < 2 * ranks; ++index) {
      const Batch batch = batch_of(index);
      (loss_of(reference->forward(batch.input), batch.target) / static_cast<double>(2 * ranks)).backward();
    }
    EXPECT_TRUE(close(gradients_of(*net_b), gradients_of(*reference))) << of_accelerator;
  }
});
TEST(UnusedParts, AModelThatSomeScopesOfAWindowUseHasTheWeightsOfAll) {
  some_scopes.everywhere();
}

// No optimizer trains the second layer. It has no gradients, so it takes no part in windows.
const RankCase frozen("a_frozen_layer", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  for (const bool reproducible : {false, true}) {
    const std::string folder = communicator.broadcast_object(scratch.path().string());
    AcceleratorOptions options{.project = {.project_dir = folder}, .communicator = communicator};
    if (reproducible) {
      options.reproducible = ReproducibleOptions{.micro_batches = 2 * communicator.size()};
    } else {
      options.gradient_accumulation_steps = 2;
    }
    Accelerator accelerator(options);
    Mlp net;
    for (const at::Tensor& parameter : net->second->parameters()) parameter.requires_grad_(false);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->first->parameters(), 0.1));
    std::set<double> random_numbers;
    for (std::int64_t pass = 0; pass < 6; ++pass) {
      const Batch batch = batch_of(pass * communicator.size() + communicator.rank());
      const auto scope = accelerator.accumulate(model);
      random_numbers.insert(at::rand({}, at::kDouble).item<double>());
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
      if (pass % 2 == 1) {
        EXPECT_NO_THROW(accelerator.save_state());
      }
    }
    accelerator.wait_for_checkpoint();
    EXPECT_EQ(random_numbers.size(), 6U);
    EXPECT_EQ(accelerator.stats().syncs, 3);
  }
});
TEST(UnusedParts, AFrozenLayerTakesNoPartInWindows) {
  frozen.on_processes({1, 2});
}

}  // namespace
}  // namespace tutti::test::unused_parts_test
