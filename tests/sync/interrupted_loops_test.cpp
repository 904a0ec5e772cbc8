// Loops that stop epochs early, skip steps or a rank's batch, or freeze parameters.
#include <ATen/Functions.h>

#include <cmath>
#include <limits>

#include "sync/loop.h"
#include "tutti/core/error.h"
#include "tutti/optim/clip_grad.h"

namespace tutti::test::interrupted_loops_test {
namespace {

struct OneModel {
  explicit OneModel(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  at::Tensor loss_of(const at::Tensor& x, int seed) { return (net(x) - stage.rows(4, 2, seed + 500)).pow(2).mean(); }

  const Stage& stage;
  TwoLayers net{3, 5, 2, 1};
  Trained model{stage, net.ptr()};
};

// Schulman et al., "Proximal Policy Optimization", 2017: epochs over a batch until the policy has changed too much.
// Each epoch has one step and its own number of micro-batches.
struct Ppo {
  explicit Ppo(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  at::Tensor log_policy(const at::Tensor& states, const at::Tensor& actions) {
    return net(states).log_softmax(1).gather(1, actions).squeeze(1);
  }
  void iterate(int i) {
    const at::Tensor states = stage.rows(6, 3, 2 * i);
    const at::Tensor actions = stage.rows(6, 4, 2 * i + 1).argmax(1, true);
    const at::Tensor advantages = stage.rows(6, 1, 2 * i + 200).squeeze(1);
    const at::Tensor before = log_policy(states, actions).detach();
    int epoch = 0;
    for (; epoch < 6; ++epoch) {
      const int parts = 1 + (i + epoch) % 3;
      for (int part = 0; part < parts; ++part) {
        const auto scope = stage.micro_batch({&policy}, part + 1 == parts);
        // Each rank's rows are cut alike.
        const auto cut = [&](const at::Tensor& all) {
          std::vector<at::Tensor> rows;
          for (std::int64_t first = 0; first < all.size(0); first += 6) {
            rows.push_back(all.narrow(0, first + 6 / parts * part, 6 / parts));
          }
          return at::cat(rows);
        };
        const at::Tensor ratio = (log_policy(cut(states), cut(actions)) - cut(before)).exp();
        const at::Tensor gain = at::min(ratio * cut(advantages), ratio.clamp(0.8, 1.2) * cut(advantages));
        policy.backward(-gain.mean() * stage.share(parts));
        if (part + 1 < parts) continue;
        policy.step();
        policy.zero_grad();
      }
      // All ranks see the same mean and stop together.
      const at::NoGradGuard no_grad;
      if (stage.mean((before - log_policy(states, actions)).mean()) > 0.01) break;
    }
    (epoch < 6 ? stopped : went_through) += 1;
  }

  const Stage& stage;
  TwoLayers net{3, 5, 4, 1};
  Trained policy{stage, net.ptr(), 0.15};
  int stopped = 0;
  int went_through = 0;
};
TEST(InterruptedLoops, PpoThatStopsItsEpochsEarlyOverMicroBatchesThatVaryInNumber) {
  expect_one_process_results<Ppo>(8);
  run_thread_ranks(1, [](const Communicator& communicator) {
    const Stage stage(communicator, RunMode::one_process, SyncPolicy::every_pass);
    Ppo ppo(stage);
    for (int i = 0; i < 8; ++i) ppo.iterate(i);
    EXPECT_GT(ppo.stopped, 0);
    EXPECT_GT(ppo.went_through, 0);
  });
}

/// In every third iteration the last rank's rows hold a NaN.
at::Tensor input_of(const Stage& stage, int i, int part) {
  at::Tensor x = stage.rows(4, 3, 2 * i + part).clone();
  const bool here = stage.alone() || stage.communicator.rank() + 1 == stage.communicator.size();
  if (i % 3 == 1 && part == 0 && here) x[x.size(0) - 1][0] = std::numeric_limits<double>::quiet_NaN();
  return x;
}

// The loop checks the mean loss before backward, because all ranks must get the same answer.
struct NanLoss : OneModel {
  using OneModel::OneModel;
  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const at::Tensor loss = loss_of(input_of(stage, i, part), i);
      if (!std::isfinite(stage.mean(loss))) {
        model.zero_grad();
        return;
      }
      const auto scope = stage.micro_batch({&model}, part == 1);
      model.backward(loss * stage.share(2));
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }
};
TEST(InterruptedLoops, AStepSkippedForALossThatIsNoNumber) {
  expect_one_process_results<NanLoss>(8);
}

// The loop checks the norm of the gradients, which is the same on all ranks, and discards the window.
struct NanNorm : OneModel {
  using OneModel::OneModel;
  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      model.backward(loss_of(input_of(stage, i, part), i) * stage.share(2));
      if (part == 0) continue;
      if (model.reducer) model.reducer->prepare_step();  // as Accelerator::clip_grad_norm_() does
      const double norm = clip_grad_norm(net->parameters(), 0.5);
      EXPECT_EQ(std::isfinite(norm), i % 3 != 1);
      if (std::isfinite(norm)) model.step();
      model.zero_grad();
    }
  }
};
TEST(InterruptedLoops, AStepSkippedForANormThatIsNoNumber) {
  expect_one_process_results<NanNorm>(8);
}

// In accumulate() a micro-batch without a backward pass has weight 0.
struct BadBatch : OneModel {
  using OneModel::OneModel;
  static bool is_bad(const Stage& stage, int i, int part, int rank) {
    return i % 2 == 1 && part == i / 2 % 2 && rank + 1 == stage.communicator.size();
  }
  void iterate(int i) {
    const int size = stage.communicator.size();
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      for (const int rank : stage.simulated_ranks()) {
        if (is_bad(stage, i, part, rank)) continue;
        const int index = (2 * i + part) * size + rank;
        const at::Tensor loss = (net(random_tensor({4, 3}, 3000 + index, at::kDouble)) - 0.5).pow(2).mean();
        model.backward(stage.alone() ? loss / (i % 2 == 1 ? 2 * size - 1 : 2 * size) : loss);
      }
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }
};
TEST(InterruptedLoops, ABadBatchThatOneRankSkipsInAScope) {
  expect_one_process_results<BadBatch>(6, {RunMode::scopes});
}

// Without scopes a rank does not know how many batches a mean is over: ranks with different passes get an error.
TEST(InterruptedLoops, ABadBatchThatOneRankSkipsOutsideOfScopesIsAnErrorOnAllRanks) {
  for (const int ranks : {2, 3}) {
    run_thread_ranks(ranks, [ranks](const Communicator& communicator) {
      const Stage stage(communicator, RunMode::plain, SyncPolicy::every_pass);
      OneModel loop(stage);
      std::string said;
      try {
        for (int i = 0; i < 3; ++i) {
          if (i != 1 || communicator.rank() + 1 != ranks) loop.model.backward(loop.loss_of(stage.rows(4, 3, i), i));
          loop.model.step();
          loop.model.zero_grad();
        }
      } catch (const MismatchError& error) {
        said = error.what();
      }
      EXPECT_NE(said.find("ranks ran different numbers of synchronizing backward passes"), std::string::npos) << said;
    });
  }
}

// The head is trained first, then the whole model, then the model without the head. Each change prepares the model
// again.
struct FreezeAndUnfreeze : OneModel {
  using OneModel::OneModel;
  void train(bool body, bool head) {
    for (at::Tensor& parameter : net->first->parameters()) parameter.requires_grad_(body);
    for (at::Tensor& parameter : net->second->parameters()) parameter.requires_grad_(head);
    model.prepare();
  }
  void iterate(int i) {
    if (i == 0) train(false, true);
    if (i == 2) train(true, true);
    if (i == 4) train(true, false);
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      model.backward(loss_of(stage.rows(4, 3, 2 * i + part), i) * stage.share(2));
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }
};
TEST(InterruptedLoops, FreezeAndUnfreeze) {
  expect_one_process_results<FreezeAndUnfreeze>(6);
}

}  // namespace
}  // namespace tutti::test::interrupted_loops_test
