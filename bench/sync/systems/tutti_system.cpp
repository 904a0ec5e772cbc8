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

class TuttiSystem : public System {
 public:
  TuttiSystem(const Arena& arena, Communicator communicator, std::shared_ptr<const WireCodec> codec)
      : arena_(arena), communicator_(std::move(communicator)), codec_(std::move(codec)) {}

  std::string name() const override { return codec_ ? "tutti, " + codec_->name() + " between nodes" : "tutti"; }
  bool rounds_gradients() const override { return codec_ != nullptr; }
  std::vector<Mode> modes() const override { return {all_modes.begin(), all_modes.end()}; }

  Measurement run(Mode mode) override {
    // Only the baseline departs from what a user gets without asking.
    Accelerator accelerator({.gradient_accumulation_steps = arena_.workload.steps(),
                             .sync_policy = mode == Mode::baseline ? SyncPolicy::every_pass : SyncPolicy::automatic,
                             .comm_hook = codec_,
                             .communicator = communicator_});
    auto net = arena_.workload.make_model();
    torch::optim::AdamW adamw(net->parameters(), learning_rate);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    Training training{accelerator, model, optimizer, arena_.workload.batch_size()};
    return arena_.stopwatch.measure(net->parameters(), [&](const Epoch& epoch) { train(mode, training, epoch); });
  }

 private:
  Arena arena_;
  Communicator communicator_;
  std::shared_ptr<const WireCodec> codec_;
};

}  // namespace

std::unique_ptr<System> make_tutti_system(const Arena& arena, const Communicator& communicator) {
  return std::make_unique<TuttiSystem>(arena, communicator, nullptr);
}

std::unique_ptr<System> make_tutti_bf16_system(const Arena& arena, const Communicator& communicator) {
  return std::make_unique<TuttiSystem>(arena, communicator, bf16_codec());
}

}  // namespace tutti::bench
