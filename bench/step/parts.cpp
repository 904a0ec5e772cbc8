// Parts of the training loop, timed alone. All calls use the gradients of one backward pass.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <memory>

#include "step/comparison.h"
#include "step/timing.h"
#include "tutti/train/accelerator.h"

namespace tutti::bench {
namespace {

constexpr double clipped_norm = 1.0;
constexpr int scopes = 10'000;

/// The learning rate of SGD and Adagrad, which take larger steps at the same rate.
constexpr double small_rate = 1e-4;

template <typename OptimizerType>
struct Plain {
  template <typename Options>
  Plain(const Workload& workload, const Options& options)
      : net(workload.make_model()), parameters(net->parameters()), optimizer(parameters, options) {
    loss_of(net, workload.timed().batches.front().tokens).backward();
  }
  gpt::Gpt net;
  std::vector<at::Tensor> parameters;
  OptimizerType optimizer;
};

template <typename OptimizerType>
struct Prepared {
  template <typename Options>
  Prepared(const Workload& workload, const Options& options)
      : net(workload.make_model()),
        inner(net->parameters(), options),
        optimizer(std::get<1>(accelerator.prepare(net, inner))) {
    accelerator.backward(loss_of(net, workload.timed().batches.front().tokens));
  }
  // No accumulate() scope of the parts ends a window.
  Accelerator accelerator{{.communicator = Communicator()}};
  gpt::Gpt net;
  OptimizerType inner;
  Optimizer optimizer;
};

template <typename OptimizerType, typename Options>
ComparisonMaker step_comparison(const std::string& name, const Workload& workload, int calls, const Options& options) {
  return [=, &workload] {
    const auto plain = std::make_shared<Plain<OptimizerType>>(workload, options);
    const auto prepared = std::make_shared<Prepared<OptimizerType>>(workload, options);
    return Comparison{.name = name + " step",
                      .unit = "ms",
                      .libtorch = [=] { return time_of_one<Milliseconds>(calls, [&] { plain->optimizer.step(); }); },
                      .tutti = [=] { return time_of_one<Milliseconds>(calls, [&] { prepared->optimizer.step(); }); },
                      .check = [=] { return prepared->optimizer.not_fused_reason(); }};
  };
}

Comparison clip_comparison(const Workload& workload, int calls) {
  using torch::optim::AdamW;
  const auto plain = std::make_shared<Plain<AdamW>>(workload, torch::optim::AdamWOptions(learning_rate));
  const auto prepared = std::make_shared<Prepared<AdamW>>(workload, torch::optim::AdamWOptions(learning_rate));
  const auto clip_plain = [=] { torch::nn::utils::clip_grad_norm_(plain->parameters, clipped_norm); };
  const auto clip_ours = [=] { prepared->accelerator.clip_grad_norm_(prepared->net, clipped_norm); };
  return {.name = "clip_grad_norm_",
          .unit = "ms",
          .libtorch = [=] { return time_of_one<Milliseconds>(calls, clip_plain); },
          .tutti = [=] { return time_of_one<Milliseconds>(calls, clip_ours); }};
}

Comparison accumulate_comparison(const Workload& workload) {
  struct Windows {
    explicit Windows(const Workload& work)
        : net(work.make_model()),
          adamw(net->parameters(), learning_rate),
          optimizer(std::get<1>(accelerator.prepare(net, adamw))) {}
    // The window is so long that no scope ends it.
    Accelerator accelerator{
        {.gradient_accumulation_steps = std::numeric_limits<int>::max(), .communicator = Communicator()}};
    gpt::Gpt net;
    torch::optim::AdamW adamw;
    Optimizer optimizer;
  };
  const auto windows = std::make_shared<Windows>(workload);
  const auto open_and_close = [=] { const auto scope = windows->accelerator.accumulate(windows->net); };
  return {.name = "accumulate() scope", .unit = "ns", .tutti = [=] {
            return time_of_one<Nanoseconds>(scopes, open_and_close);
          }};
}

}  // namespace

std::vector<ComparisonMaker> part_comparisons(const Workload& workload, int calls) {
  namespace optim = torch::optim;
  return {
      step_comparison<optim::AdamW>("AdamW", workload, calls, optim::AdamWOptions(learning_rate)),
      step_comparison<optim::Adam>("Adam", workload, calls, optim::AdamOptions(learning_rate)),
      step_comparison<optim::SGD>("SGD with momentum", workload, calls, optim::SGDOptions(small_rate).momentum(0.9)),
      step_comparison<optim::Adagrad>("Adagrad", workload, calls, optim::AdagradOptions(small_rate)),
      [&workload, calls] { return clip_comparison(workload, calls); },
      [&workload] { return accumulate_comparison(workload); }};
}

}  // namespace tutti::bench
