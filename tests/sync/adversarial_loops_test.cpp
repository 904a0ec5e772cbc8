// Loops that train two models adversarially.
#include <torch/csrc/autograd/autograd.h>

#include "sync/loop.h"

namespace tutti::test::adversarial_loops_test {
namespace {

struct Adversaries {
  explicit Adversaries(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const {
    auto all = critic->parameters();
    for (const at::Tensor& parameter : generator->parameters()) all.push_back(parameter);
    return all;
  }
  at::Tensor fake(int seed) { return generator(stage.rows(4, 3, seed)); }

  const Stage& stage;
  TwoLayers critic{2, 5, 1, 1};
  TwoLayers generator{3, 5, 2, 2};
  Trained c{stage, critic.ptr()};
  Trained g{stage, generator.ptr()};
};

// Gulrajani et al., "Improved Training of Wasserstein GANs", 2017: three critic steps, each with a penalty on the norm
// of the gradient with respect to the critic's input. Backward goes through that gradient a second time.
struct WassersteinGan : Adversaries {
  using Adversaries::Adversaries;

  at::Tensor penalty(const at::Tensor& real, const at::Tensor& fake, int seed) {
    const at::Tensor place = at::sigmoid(stage.rows(4, 1, seed));
    const at::Tensor between = (place * real + (1 - place) * fake).detach().requires_grad_();
    const at::Tensor slope = torch::autograd::grad({critic(between).sum()}, {between}, {}, /*retain_graph=*/true,
                                                   /*create_graph=*/true)[0];
    return (slope.norm(2, 1) - 1).pow(2).mean();
  }
  void iterate(int i) {
    const auto scope = stage.micro_batch({&c, &g});
    for (int step = 0; step < 3; ++step) {
      const int seed = 40 * i + 4 * step;
      const at::Tensor real = stage.rows(4, 2, seed);
      const at::Tensor made = fake(seed + 1).detach();
      c.zero_grad();
      c.backward(critic(made).mean() - critic(real).mean() + 10 * penalty(real, made, seed + 2));
      c.step();
    }
    g.zero_grad();
    g.backward(-critic(fake(40 * i + 39)).mean());
    g.step();
  }
};
TEST(AdversarialLoops, WassersteinGanWithGradientPenaltyAndSeveralCriticSteps) {
  expect_one_process_results<WassersteinGan>();
}

// As in CycleGAN, the critic is frozen while the generator's loss goes through it.
struct FrozenCritic : Adversaries {
  using Adversaries::Adversaries;

  void iterate(int i) {
    const auto scope = stage.micro_batch({&c, &g});
    for (at::Tensor& parameter : critic->parameters()) parameter.requires_grad_(false);
    g.zero_grad();
    g.backward((critic(fake(2 * i)) - 1).pow(2).mean());
    g.step();
    for (at::Tensor& parameter : critic->parameters()) parameter.requires_grad_(true);
    c.zero_grad();
    c.backward((critic(stage.rows(4, 2, 2 * i + 1)) - 1).pow(2).mean() + critic(fake(2 * i).detach()).pow(2).mean());
    c.step();
  }
};
TEST(AdversarialLoops, ACriticThatIsFrozenForTheGeneratorsPass) {
  expect_one_process_results<FrozenCritic>();
}

// The same where both are parts of one module.
struct FrozenPart : FrozenCritic {
  explicit FrozenPart(const Stage& where) : FrozenCritic(where) {
    if (where.alone()) return;
    for (const auto& part : {c.reducer, g.reducer}) part->set_parts({c.reducer, g.reducer});
  }
};
TEST(AdversarialLoops, APartThatIsFrozenForThePassOfTheOther) {
  expect_one_process_results<FrozenPart>();
}

}  // namespace
}  // namespace tutti::test::adversarial_loops_test
