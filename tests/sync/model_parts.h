#pragma once
// Two reducers for the parts of one model, of which backward passes reach one or both.
#include <chrono>
#include <optional>

#include "support/rank_case.h"
#include "sync/toy_model.h"

namespace tutti::test {

/// Two parts of one model; each has a parameter a.
struct Parts {
  explicit Parts(const Communicator& communicator, const ReducerOptions& options = {})
      : first(communicator, options), second(communicator, options) {
    for (ToyModel* part : {&first, &second}) part->reducer->set_parts({first.reducer, second.reducer});
  }
  /// One pass that reaches the parts that have a gradient, the second one first.
  void pass(std::optional<double> of_first, std::optional<double> of_second, bool explodes_between = false) {
    at::Tensor loss = at::zeros({}).requires_grad_() * 0;
    if (of_first) loss = loss + first.a.sum() * *of_first;
    if (explodes_between) loss = Explosive::apply(loss);
    if (of_second) loss = loss + second.a.sum() * *of_second;
    loss.backward();
  }
  AccumulateScope accumulate(double weight, bool syncs) {
    const AccumulationStep step{.weight = weight, .syncs = syncs};
    return AccumulateScope({{.reducer = first.reducer, .step = step}, {.reducer = second.reducer, .step = step}});
  }
  void finish() {
    for (ToyModel* part : {&first, &second}) {
      part->optimizer.step();
      part->optimizer.zero_grad();
    }
  }
  ToyModel first;
  ToyModel second;
};

inline const CommunicatorOptions soon{.timeout = std::chrono::seconds(20)};

inline ReducerOptions with_policy(SyncPolicy policy) {
  return {.policy = policy};
}

}  // namespace tutti::test
