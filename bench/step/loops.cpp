// The training loop as a LibTorch program and as a tutti program.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <memory>

#include "step/comparison.h"
#include "step/timing.h"
#include "sync/parameters.h"
#include "tutti/train/accelerator.h"

namespace tutti::bench {
namespace {

constexpr double max_norm = 1.0;
/// Rounding alone makes equal trainings differ by about 1e-5 of the distance trained.
constexpr double largest_distance = 0.01;

class PlainLoop {
 public:
  PlainLoop(const Workload& workload, bool clips)
      : workload_(workload),
        clips_(clips),
        net_(workload.make_model()),
        parameters_(net_->parameters()),
        optimizer_(parameters_, learning_rate) {}

  void train(const Epoch& epoch) {
    for (const auto& [tokens, ends_window] : epoch.batches) {
      const auto loss = loss_of(net_, tokens);
      (workload_.steps() == 1 ? loss : loss / workload_.steps()).backward();
      if (!ends_window) continue;
      if (clips_) torch::nn::utils::clip_grad_norm_(parameters_, max_norm);
      optimizer_.step();
      optimizer_.zero_grad();
    }
  }

  const Parameters& parameters() const { return parameters_; }

 private:
  const Workload& workload_;
  bool clips_;
  gpt::Gpt net_;
  Parameters parameters_;
  torch::optim::AdamW optimizer_;
};

class TuttiLoop {
 public:
  TuttiLoop(const Workload& workload, bool clips)
      : clips_(clips),
        accelerator_({.gradient_accumulation_steps = workload.steps(), .communicator = Communicator()}),
        net_(workload.make_model()),
        adamw_(net_->parameters(), learning_rate),
        optimizer_(std::get<1>(accelerator_.prepare(net_, adamw_))) {}

  void train(const Epoch& epoch) {
    for (const auto& [tokens, ends_window] : epoch.batches) {
      accelerator_.backward(loss_of(net_, tokens));
      if (!ends_window) continue;
      if (clips_) accelerator_.clip_grad_norm_(net_, max_norm);
      optimizer_.step();
      optimizer_.zero_grad();
    }
  }

  Parameters parameters() const { return net_->parameters(); }

 private:
  bool clips_;
  Accelerator accelerator_;
  gpt::Gpt net_;
  torch::optim::AdamW adamw_;
  Optimizer optimizer_;
};

Comparison loop_comparison(const Workload& workload, bool clips) {
  const auto plain = std::make_shared<PlainLoop>(workload, clips);
  const auto ours = std::make_shared<TuttiLoop>(workload, clips);
  const auto start = copy_of(plain->parameters());
  plain->train(workload.warm_up());
  ours->train(workload.warm_up());
  const auto time_of = [&workload](auto& loop) {
    const auto batches = static_cast<double>(workload.timed().batches.size());
    return time_of_one<Milliseconds>(1, [&] { loop.train(workload.timed()); }) / batches;
  };
  return {.name = clips ? "batch with clipping" : "batch",
          .unit = "ms",
          .libtorch = [plain, time_of] { return time_of(*plain); },
          .tutti = [ours, time_of] { return time_of(*ours); },
          .check =
              [plain, ours, start] {
                const double distance = relative_distance(ours->parameters(), plain->parameters(), start);
                if (distance < largest_distance) return std::string();
                return "tutti's parameters differ from LibTorch's by " + std::to_string(distance) +
                       " of the distance trained";
              }};
}

}  // namespace

std::vector<ComparisonMaker> loop_comparisons(const Workload& workload) {
  return {[&workload] { return loop_comparison(workload, false); },
          [&workload] { return loop_comparison(workload, true); }};
}

}  // namespace tutti::bench
