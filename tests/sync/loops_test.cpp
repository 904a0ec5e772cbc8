// Training loops with several backward passes and steps per iteration, compared with the plain LibTorch program on one
// process. Each loop runs on several ranks, with every iteration in accumulate() and without.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <array>
#include <map>
#include <optional>
#include <string>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test {
namespace {

/// How a loop runs: plain LibTorch on all ranks' samples, or tutti on this rank's samples.
enum class Loop { one_process, plain, scopes };

struct Player {
  Player(const Communicator& communicator, Loop loop, SyncPolicy policy, std::uint64_t seed) {
    fill(*net, seed);
    if (loop == Loop::one_process) return;
    reducer = std::make_shared<Reducer>(named_parameters_of(*net), communicator.duplicate("player"),
                                        ReducerOptions{.policy = policy});
    optimizer.emplace(raw, reducer);
  }
  void step() { optimizer ? optimizer->step() : static_cast<void>(raw->step()); }
  void zero() { optimizer ? optimizer->zero_grad() : raw->zero_grad(); }

  torch::nn::Linear net{3, 3};
  std::shared_ptr<torch::optim::SGD> raw =
      std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  std::shared_ptr<Reducer> reducer;
  std::optional<Optimizer> optimizer;
};

/// Two models. `d` is trained on its own losses, `g` on losses through `d`.
class Game {
 public:
  Game(const Communicator& communicator, Loop loop, SyncPolicy policy)
      : communicator_(communicator), loop_(loop), d(communicator, loop, policy, 1), g(communicator, loop, policy, 2) {}

  /// Each character is a move. D and G are backward passes, d and g are steps, x and y are zero_grad() of the
  /// optimizers of D and of G. X is zero_grad() of the module D.
  void iterate(const std::string& moves) {
    std::optional<AccumulateScope> scope;
    if (loop_ == Loop::scopes) {
      scope.emplace(
          std::vector<AccumulateScope::Member>{{.reducer = d.reducer, .step = {}}, {.reducer = g.reducer, .step = {}}});
    }
    for (const char move : moves) make(move);
    scope.reset();
    ++iteration_;
  }

 private:
  void make(char move) {
    switch (move) {
      case 'D':
        return backward([this](const at::Tensor& x) { return d.net(x).pow(2).mean() - through_g(x).mean(); });
      case 'G':
        return backward([this](const at::Tensor& x) { return d.net(at::tanh(g.net(x))).pow(2).mean(); });
      case 'd':
        return d.step();
      case 'g':
        return g.step();
      case 'x':
        return d.zero();
      case 'y':
        return g.zero();
      case 'X':
        return d.net->zero_grad();
      default:
        FAIL() << move;
    }
  }
  at::Tensor through_g(const at::Tensor& x) { return d.net(at::tanh(g.net(x)).detach()); }
  template <typename Loss>
  void backward(const Loss& loss) {
    ++passes_;
    const int size = communicator_.size();
    const auto of_rank = [&](int rank) {
      return loss(random_tensor({4, 3}, static_cast<std::uint64_t>(900 + passes_ * size + rank)));
    };
    if (loop_ != Loop::one_process) {
      of_rank(communicator_.rank()).backward();
      for (Player* player : {&d, &g}) player->reducer->add_scope_weight();
      return;
    }
    for (int rank = 0; rank < size; ++rank) (of_rank(rank) / size).backward();
  }

  Communicator communicator_;
  Loop loop_;
  int iteration_ = 0;
  int passes_ = 0;

 public:
  Player d, g;
};

/// The moves of an iteration, or those of the even and of the odd iterations.
const std::map<std::string, std::string> orders = {
    {"TutorialGan", "xDDdyGg"},
    {"GanThatClearsAfterSteps", "DdxGgyx"},
    {"GanThatClearsOnce", "DdxGgy"},
    {"GanThatClearsTheModule", "DdxGgyX"},
    {"SeveralCriticSteps", "xDdxDdxDdyGg"},
    {"CriticStepsThatClearAfter", "DdxDdxDdxGgyx"},
    {"EpochsOverABatch", "xDdxDdxDdxDd"},
    {"SecondPassOfTheSameStep", "xDxDd"},
    {"StepsWithoutClearing", "xDdDdDd"},
    {"ASkippedStep", "xDx"},
    {"AStepThatOneOfTwoIterationsSkips", "xDdyG|xDdyGg"},
};

class Loops : public testing::TestWithParam<std::pair<const std::string, std::string>> {};

TEST_P(Loops, GiveWhatOneProcessGives) {
  const std::string& text = GetParam().second;
  const std::array moves{text.substr(0, text.find('|')), text.substr(text.find('|') + 1)};
  for (const int ranks : {1, 2, 3}) {
    for (const SyncPolicy policy : {SyncPolicy::every_pass, SyncPolicy::automatic}) {
      for (const Loop loop : {Loop::plain, Loop::scopes}) {
        run_thread_ranks(ranks, [&](const Communicator& communicator) {
          Game one(communicator, Loop::one_process, policy);
          Game many(communicator, loop, policy);
          for (int i = 0; i < 6; ++i) {
            one.iterate(moves[i % 2]);
            many.iterate(moves[i % 2]);
            EXPECT_TRUE(close(many.d.net->parameters(), one.d.net->parameters(), 1e-5))
                << "D, " << ranks << " ranks, iteration " << i << (loop == Loop::scopes ? ", in scopes" : "");
            EXPECT_TRUE(close(many.g.net->parameters(), one.g.net->parameters(), 1e-5))
                << "G, " << ranks << " ranks, iteration " << i << (loop == Loop::scopes ? ", in scopes" : "");
          }
        });
        if (HasFailure()) return;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(InTurns, Loops, testing::ValuesIn(orders.begin(), orders.end()),
                         [](const auto& order) { return order.param.first; });

}  // namespace
}  // namespace tutti::test
