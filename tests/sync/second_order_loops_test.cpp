// Loops that compute gradients from gradients: MAML, SAM, PCGrad, LBFGS.
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/lbfgs.h>

#include "sync/loop.h"
#include "tutti/core/error.h"

namespace tutti::test::second_order_loops_test {
namespace {

// Finn et al., "Model-Agnostic Meta-Learning", 2017: the loss after two inner steps, differentiated through them. A
// micro-batch has a task for each rank. A step has two micro-batches.
struct Maml : OneModel {
  using OneModel::OneModel;

  static at::Tensor apply(const std::vector<at::Tensor>& p, const at::Tensor& x) {
    return at::linear(at::tanh(at::linear(x, p[0], p[1])), p[2], p[3]);
  }
  at::Tensor adapted_loss(int task) {
    const at::Tensor x = random_tensor({6, 3}, 7000 + task, at::kDouble);
    const at::Tensor y = random_tensor({6, 2}, 8000 + task, at::kDouble);
    const auto loss_on = [&](const std::vector<at::Tensor>& p, int first) {
      return (apply(p, x.narrow(0, first, 3)) - y.narrow(0, first, 3)).pow(2).mean();
    };
    std::vector<at::Tensor> fast = net->parameters();
    for (int step = 0; step < 2; ++step) {
      const auto slopes = torch::autograd::grad({loss_on(fast, 0)}, fast, {}, true, /*create_graph=*/true);
      for (std::size_t p = 0; p < fast.size(); ++p) fast[p] = fast[p] - 0.1 * slopes[p];
    }
    return loss_on(fast, 3);
  }
  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      at::Tensor sum = at::zeros({}, at::kDouble);
      const auto ranks = stage.simulated_ranks();
      for (const int rank : ranks) sum = sum + adapted_loss((2 * i + part) * stage.communicator.size() + rank);
      model.backward(sum * stage.share(2) / static_cast<double>(ranks.size()));
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }
};
TEST(SecondOrderLoops, Maml) {
  expect_one_process_results<Maml>();
}

// backward() with create_graph would give .grad a graph, which a mean over ranks does not have.
TEST(SecondOrderLoops, BackwardWithCreateGraphIsRefusedByName) {
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      const Stage stage(communicator, RunMode::plain, SyncPolicy::every_pass);
      OneModel loop(stage);
      try {
        loop.loss(0).backward({}, true, /*create_graph=*/true);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("use torch::autograd::grad"), std::string::npos) << error.what();
      }
    });
  }
}

// Foret et al., "Sharpness-Aware Minimization", 2021: parameters move up along the gradient for a second pass, then
// back.
struct Sam : OneModel {
  using OneModel::OneModel;

  void iterate(int i) {
    const auto scope = stage.micro_batch({&model});
    model.backward(loss(i));
    std::vector<at::Tensor> climbed;
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) {
        climbed.push_back(parameter.grad() * 0.1);
        parameter.add_(climbed.back());
      }
    }
    model.zero_grad();
    model.backward(loss(i));
    {
      const at::NoGradGuard no_grad;
      auto all = net->parameters();
      for (std::size_t p = 0; p < all.size(); ++p) all[p].sub_(climbed[p]);
    }
    model.step();
    model.zero_grad();
  }
};
TEST(SecondOrderLoops, SharpnessAwareMinimization) {
  // The plain loop needs the mean after each pass. The automatic policy synchronizes each pass from the first one on.
  expect_one_process_results<Sam>();
}

// Yu et al., "Gradient Surgery for Multi-Task Learning", 2020: each task's gradient loses the part that conflicts with
// the other task's gradient. The sum of both replaces the gradient.
struct Surgery : OneModel {
  using OneModel::OneModel;

  std::vector<at::Tensor> gradients_of_task(int task, int i) {
    model.zero_grad();
    model.backward(loss(100 * task + i));
    std::vector<at::Tensor> kept;
    for (const at::Tensor& parameter : net->parameters()) kept.push_back(parameter.grad());
    return kept;
  }
  void iterate(int i) {
    const auto scope = stage.micro_batch({&model});
    const auto one = gradients_of_task(1, i);
    const auto other = gradients_of_task(2, i);
    auto all = net->parameters();
    for (std::size_t p = 0; p < all.size(); ++p) {
      const at::Tensor dot = (one[p] * other[p]).sum();
      const at::Tensor against = at::clamp_max(dot, 0);
      all[p].mutable_grad() =
          one[p] - against / other[p].pow(2).sum() * other[p] + other[p] - against / one[p].pow(2).sum() * one[p];
    }
    model.step();
  }
};
TEST(SecondOrderLoops, GradientSurgeryOverKeptGradients) {
  expect_one_process_results<Surgery>();
}

struct Lbfgs {
  explicit Lbfgs(const Stage& where) : stage(where) {
    if (stage.alone()) return;
    reducer = std::make_shared<Reducer>(named_parameters_of(*net), stage.communicator.duplicate("lbfgs"),
                                        ReducerOptions{.policy = stage.policy});
    optimizer.emplace(raw, reducer);
  }
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  void iterate(int i) {
    const auto closure = [&] {
      ++calls;
      optimizer ? optimizer->zero_grad() : raw->zero_grad();
      const at::Tensor loss = (net(stage.rows(4, 3, i)) - stage.rows(4, 2, i + 500)).pow(2).mean();
      loss.backward();
      return loss;
    };
    if (stage.way == RunMode::scopes) {
      const AccumulateScope scope({{.reducer = reducer, .step = {}}});
      try {
        optimizer->step(closure);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("step(closure) inside accumulate()"), std::string::npos);
      }
      EXPECT_EQ(calls, 0);
      return;
    }
    optimizer ? optimizer->step(closure) : raw->step(closure);
  }

  const Stage& stage;
  TwoLayers net{3, 4, 2, 1};
  std::shared_ptr<torch::optim::LBFGS> raw = std::make_shared<torch::optim::LBFGS>(
      net->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe"));
  std::shared_ptr<Reducer> reducer;
  std::optional<Optimizer> optimizer;
  int calls = 0;
};
TEST(SecondOrderLoops, LbfgsWithItsClosure) {
  expect_one_process_results<Lbfgs>(3, {RunMode::plain});
}

TEST(SecondOrderLoops, LbfgsInAScopeIsRefusedByName) {
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      const Stage stage(communicator, RunMode::scopes, SyncPolicy::every_pass);
      Lbfgs(stage).iterate(0);
    });
  }
}

}  // namespace
}  // namespace tutti::test::second_order_loops_test
