// The plain LibTorch loop: without communication, the baseline of all ratios, and the hand-written loop of
// pytorch/examples' cpp/distributed/dist-mnist.cpp, with one all-reduce for each parameter after backward.
#include <torch/optim/adamw.h>

#include "sync/systems/system.h"

namespace tutti::bench {
namespace {

void average_gradients(const Parameters& parameters, c10d::ProcessGroup& group) {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const auto& parameter : parameters) {
    std::vector<at::Tensor> gradient{parameter.grad()};
    works.push_back(group.allreduce(gradient));
  }
  for (const auto& work : works) work->wait();
  for (const auto& parameter : parameters) parameter.grad().div_(group.getSize());
}

class PlainSystem : public System {
 public:
  /// `group`: null for no communication.
  PlainSystem(const BenchContext& context, c10::intrusive_ptr<c10d::ProcessGroup> group)
      : context_(context), group_(std::move(group)) {}

  std::string name() const override { return group_ ? "hand-written" : "none"; }
  std::vector<Mode> modes() const override {
    return group_ ? std::vector{Mode::baseline, Mode::no_sync} : std::vector{Mode::baseline};
  }
  bool synchronizes() const override { return group_.defined(); }

  Measurement run(Mode mode) override {
    auto net = context_.workload.make_model();
    const auto parameters = net->parameters();
    torch::optim::AdamW optimizer(parameters, learning_rate);
    return context_.measure(parameters, [&](const Epoch& epoch) {
      for (const auto& [tokens, ends_window] : epoch.batches) {
        const auto loss = loss_of(net, tokens) / context_.workload.steps();
        loss.backward();
        if (group_ && (mode == Mode::baseline || ends_window)) average_gradients(parameters, *group_);
        if (ends_window) {
          optimizer.step();
          optimizer.zero_grad();
        }
      }
    });
  }

 private:
  BenchContext context_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<System> make_no_communication_system(const BenchContext& context) {
  return std::make_unique<PlainSystem>(context, nullptr);
}

std::unique_ptr<System> make_hand_written_system(const BenchContext& context,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return std::make_unique<PlainSystem>(context, std::move(group));
}

}  // namespace tutti::bench
