// The loop without communication: the baseline of all ratios.
#include <torch/optim/adamw.h>

#include "sync/systems/system.h"

namespace tutti::bench {
namespace {

class NoCommunicationSystem : public System {
 public:
  explicit NoCommunicationSystem(const BenchContext& context) : context_(context) {}

  std::string name() const override { return "none"; }
  std::vector<Mode> modes() const override { return {Mode::baseline}; }
  bool synchronizes() const override { return false; }

  Measurement run(Mode) override {
    auto net = context_.workload.make_model();
    torch::optim::AdamW optimizer(net->parameters(), learning_rate);
    return context_.stopwatch.measure(net->parameters(), [&](const Epoch& epoch) {
      for (const auto& [tokens, ends_window] : epoch.batches) {
        const auto loss = loss_of(net, tokens) / context_.workload.steps();
        loss.backward();
        if (ends_window) {
          optimizer.step();
          optimizer.zero_grad();
        }
      }
    });
  }

 private:
  BenchContext context_;
};

}  // namespace

std::unique_ptr<System> make_no_communication_system(const BenchContext& context) {
  return std::make_unique<NoCommunicationSystem>(context);
}

}  // namespace tutti::bench
