// tutti, with the loop of each mode as a user writes it.
#include <torch/optim/adamw.h>

#include "sync/systems/system.h"
#include "tutti/train/accelerator.h"

namespace tutti::bench {
namespace {

struct Training {
  Accelerator& accelerator;
  gpt::Gpt& model;
  Optimizer& optimizer;
  int batch_size;

  void step() {
    optimizer.step();
    optimizer.zero_grad();
  }
};

/// For baseline and automatic: the difference is the Accelerator's policy.
void loop_without_annotation(Training& training, const Epoch& epoch) {
  for (const auto& [tokens, ends_window] : epoch.batches) {
    training.accelerator.backward(loss_of(training.model, tokens));
    if (ends_window) training.step();
  }
}

void loop_with_misplaced_no_sync(Training& training, const Epoch& epoch) {
  for (const auto& [tokens, ends_window] : epoch.batches) {
    const auto loss = loss_of(training.model, tokens);
    {
      auto quiet = training.accelerator.no_sync(training.model, !ends_window);
      training.accelerator.backward(loss);
    }
    if (ends_window) training.step();
  }
}

void loop_with_no_sync(Training& training, const Epoch& epoch) {
  for (const auto& [tokens, ends_window] : epoch.batches) {
    {
      auto quiet = training.accelerator.no_sync(training.model, !ends_window);
      training.accelerator.backward(loss_of(training.model, tokens));
    }
    if (ends_window) training.step();
  }
}

void loop_with_accumulate(Training& training, const Epoch& epoch) {
  // accumulate() ends the last, short window because the loader tells it that the data ends.
  auto loader = training.accelerator.data_loader(epoch.dataset, {.batch_size = training.batch_size});
  for (const auto& tokens : loader) {
    auto window = training.accelerator.accumulate(training.model);
    training.accelerator.backward(loss_of(training.model, tokens));
    training.step();
  }
}

void train(Mode mode, Training& training, const Epoch& epoch) {
  switch (mode) {
    case Mode::baseline:
    case Mode::automatic:
      return loop_without_annotation(training, epoch);
    case Mode::no_sync_misplaced:
      return loop_with_misplaced_no_sync(training, epoch);
    case Mode::no_sync:
      return loop_with_no_sync(training, epoch);
    case Mode::accumulate:
      return loop_with_accumulate(training, epoch);
  }
}

struct Variant {
  std::string name;
  std::vector<Mode> modes{all_modes.begin(), all_modes.end()};
  std::shared_ptr<const WireCodec> codec{};
  bool fused = false;
};

class TuttiSystem : public System {
 public:
  TuttiSystem(const Arena& arena, Variant variant) : arena_(arena), variant_(std::move(variant)) {}

  std::string name() const override { return variant_.name; }
  bool rounds_gradients() const override { return variant_.codec != nullptr; }
  std::vector<Mode> modes() const override { return variant_.modes; }
  std::string settings() const override { return variant_.fused ? "steps with tutti's own, fused AdamW" : ""; }

  Measurement run(Mode mode) override {
    // The baseline departs from what a user gets without asking, and so does a step that is not fused.
    Accelerator accelerator({.gradient_accumulation_steps = arena_.workload.steps(),
                             .sync_policy = mode == Mode::baseline ? SyncPolicy::every_pass : SyncPolicy::automatic,
                             .comm_hook = variant_.codec,
                             .fused_optimizers = variant_.fused,
                             .communicator = arena_.communicator});
    auto net = arena_.workload.make_model();
    torch::optim::AdamW adamw(net->parameters(), learning_rate);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    Training training{accelerator, model, optimizer, arena_.workload.batch_size()};
    return arena_.stopwatch.measure(net->parameters(), [&](const Epoch& epoch) { train(mode, training, epoch); });
  }

 private:
  Arena arena_;
  Variant variant_;
};

}  // namespace

std::unique_ptr<System> make_tutti_system(const Arena& arena) {
  return std::make_unique<TuttiSystem>(arena, Variant{.name = "tutti"});
}

std::unique_ptr<System> make_tutti_bf16_system(const Arena& arena) {
  return std::make_unique<TuttiSystem>(arena, Variant{.name = "tutti, bf16 between nodes", .codec = bf16_codec()});
}

std::unique_ptr<System> make_tutti_fused_system(const Arena& arena) {
  return std::make_unique<TuttiSystem>(
      arena, Variant{.name = "tutti, fused step", .modes = {Mode::baseline, Mode::automatic}, .fused = true});
}

}  // namespace tutti::bench
