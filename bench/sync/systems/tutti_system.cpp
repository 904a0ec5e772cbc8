// tutti, with the loops of tutti_loops.h.
#include <torch/optim/adamw.h>

#include "sync/systems/system.h"
#include "sync/systems/tutti_loops.h"

namespace tutti::bench {
namespace {

struct Variant {
  std::string name;
  std::vector<Mode> modes{all_modes.begin(), all_modes.end()};
  std::shared_ptr<const WireCodec> codec{};
  bool fused = false;
};

class TuttiSystem : public System {
 public:
  TuttiSystem(const BenchContext& context, Variant variant) : context_(context), variant_(std::move(variant)) {}

  std::string name() const override { return variant_.name; }
  bool rounds_gradients() const override { return variant_.codec != nullptr; }
  std::vector<Mode> modes() const override { return variant_.modes; }
  std::string settings() const override { return variant_.fused ? "steps with tutti's own, fused AdamW" : ""; }

  Measurement run(Mode mode) override {
    // The baseline and a step that is not fused differ from tutti's defaults.
    Accelerator accelerator({.gradient_accumulation_steps = context_.workload.steps(),
                             .sync_policy = mode == Mode::baseline ? SyncPolicy::every_pass : SyncPolicy::automatic,
                             .gradient_codec = variant_.codec,
                             .fused_optimizers = variant_.fused,
                             .communicator = context_.communicator});
    auto net = context_.workload.make_model();
    torch::optim::AdamW adamw(net->parameters(), learning_rate);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    TuttiTraining<gpt::Gpt> training{accelerator, model, optimizer, context_.workload.batch_size()};
    return context_.measure(net->parameters(), [&](const Epoch& epoch) { train_with_tutti(mode, training, epoch); });
  }

 private:
  BenchContext context_;
  Variant variant_;
};

}  // namespace

std::unique_ptr<System> make_tutti_system(const BenchContext& context) {
  return std::make_unique<TuttiSystem>(context, Variant{.name = "tutti"});
}

std::unique_ptr<System> make_tutti_encoded_system(const BenchContext& context, std::shared_ptr<const WireCodec> codec) {
  const std::string name = "tutti, " + codec->name() + " between nodes";
  return std::make_unique<TuttiSystem>(context, Variant{.name = name, .codec = std::move(codec)});
}

std::unique_ptr<System> make_tutti_fused_system(const BenchContext& context) {
  return std::make_unique<TuttiSystem>(
      context, Variant{.name = "tutti, fused step", .modes = {Mode::baseline, Mode::automatic}, .fused = true});
}

}  // namespace tutti::bench
