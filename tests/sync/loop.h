#pragma once
// Compares training loops from the literature on several ranks with one process. A loop is written once: for plain
// LibTorch on one process over all ranks' data, and for tutti on each rank over the rank's own data.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test {

/// How a loop runs.
enum class RunMode { one_process, plain, scopes };

/// A model, its optimizer and its reducer.
struct Trained;

/// The ranks, the run mode and the policy of a loop.
class Stage {
 public:
  Stage(const Communicator& ranks, RunMode how, SyncPolicy which) : communicator(ranks), way(how), policy(which) {}

  bool alone() const { return way == RunMode::one_process; }
  /// The ranks whose data this process reads.
  std::vector<int> simulated_ranks() const {
    if (!alone()) return {communicator.rank()};
    std::vector<int> all;
    for (int rank = 0; rank < communicator.size(); ++rank) all.push_back(rank);
    return all;
  }
  /// Random numbers, `count` rows for each of simulated_ranks().
  at::Tensor rows(std::int64_t count, std::int64_t columns, int seed) const {
    const at::Tensor all = random_tensor({count * communicator.size(), columns}, 1000 + seed, at::kDouble);
    return alone() ? all : all.narrow(0, count * communicator.rank(), count);
  }
  /// The mean over ranks.
  double mean(const at::Tensor& value) const {
    const at::Tensor sum = value.detach().to(at::kDouble).clone();
    if (!alone()) communicator.all_reduce(sum, ReduceOp::mean).wait();
    return sum.item<double>();
  }
  /// The factor of a micro-batch's loss. A program without scopes divides losses by the number of micro-batches of a
  /// step.
  double share(int micro_batches) const { return way == RunMode::scopes ? 1.0 : 1.0 / micro_batches; }
  /// Opens the scope of a micro-batch of `models`; nullopt if the loop runs without scopes.
  std::optional<AccumulateScope> micro_batch(std::initializer_list<Trained*> models, bool last = true,
                                             double weight = 1) const;

  const Communicator communicator;
  const RunMode way;
  const SyncPolicy policy;
};

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl(int in, int hidden, int out, std::uint64_t seed)
      : first(register_module("first", torch::nn::Linear(in, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, out))) {
    to(at::kDouble);
    fill(*this, seed);
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }

  torch::nn::Linear first, second;
};
TORCH_MODULE(TwoLayers);

struct Trained {
  Trained(const Stage& where, std::shared_ptr<torch::nn::Module> net, double rate = 0.05)
      : stage(where),
        module(std::move(net)),
        raw(std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(rate).momentum(0.5))) {
    prepare();
  }
  /// Makes the reducer. Call prepare() again, between steps, after freezing or unfreezing parameters.
  void prepare() {
    if (stage.alone()) return;
    optimizer.reset();
    reducer = std::make_shared<Reducer>(named_parameters_of(*module), stage.communicator.duplicate("trained"),
                                        ReducerOptions{.policy = stage.policy});
    optimizer.emplace(raw, reducer);
  }
  void step() { optimizer ? optimizer->step() : static_cast<void>(raw->step()); }
  void zero_grad() { optimizer ? optimizer->zero_grad() : raw->zero_grad(); }
  /// Runs a backward pass as Accelerator::backward() does.
  void backward(const at::Tensor& loss, bool retain_graph = false) const {
    loss.backward({}, retain_graph);
    passed();
  }
  /// Counts a backward pass that was not run by backward().
  void passed() const {
    if (reducer) reducer->add_scope_weight();
  }
  std::vector<at::Tensor> parameters() const { return module->parameters(); }

  const Stage& stage;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::optim::SGD> raw;
  std::shared_ptr<Reducer> reducer;
  std::optional<Optimizer> optimizer;
};

inline std::optional<AccumulateScope> Stage::micro_batch(std::initializer_list<Trained*> models, bool last,
                                                         double weight) const {
  if (way != RunMode::scopes) return std::nullopt;
  std::vector<AccumulateScope::Member> members;
  for (Trained* model : models) {
    members.push_back({.reducer = model->reducer, .step = {.weight = weight, .syncs = last}});
  }
  return std::optional<AccumulateScope>(std::in_place, members);
}

/// The base of loops with one model.
struct OneModel {
  explicit OneModel(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  at::Tensor loss(int seed) { return (net(stage.rows(4, 3, seed)) - stage.rows(4, 2, seed + 500)).pow(2).mean(); }

  const Stage& stage;
  TwoLayers net{3, 5, 2, 1};
  Trained model{stage, net.ptr()};
};

/// `Loop` is constructed from a Stage. Compares parameters() with those of one process after each call of iterate(i).
template <typename Loop>
void expect_one_process_results(int iterations = 5,
                                std::initializer_list<RunMode> ways = {RunMode::plain, RunMode::scopes}) {
  for (const int ranks : {1, 2, 3}) {
    for (const SyncPolicy policy : {SyncPolicy::every_pass, SyncPolicy::automatic}) {
      for (const RunMode way : ways) {
        run_thread_ranks(ranks,
                         [&](const Communicator& communicator) {
                           const Stage alone(communicator, RunMode::one_process, policy);
                           const Stage stage(communicator, way, policy);
                           Loop one(alone);
                           Loop many(stage);
                           for (int i = 0; i < iterations; ++i) {
                             one.iterate(i);
                             many.iterate(i);
                             EXPECT_TRUE(close(many.parameters(), one.parameters(), 1e-9))
                                 << ranks << " ranks, iteration " << i << (way == RunMode::scopes ? ", in scopes" : "")
                                 << (policy == SyncPolicy::automatic ? ", automatic" : "");
                           }
                         },
                         {.timeout = std::chrono::seconds(30)});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace tutti::test
