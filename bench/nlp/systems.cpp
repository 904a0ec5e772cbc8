#include "nlp/systems.h"

#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <iostream>
#include <utility>

#include "sync/systems/tutti_loops.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::bench {
namespace {

using Bert = std::shared_ptr<ExportedModule>;

constexpr double bert_learning_rate = 1e-4;

/// The dropout rate of all systems, in C++ and in Python.
void seed(const Communicator& communicator) {
  torch::manual_seed(1 + static_cast<std::uint64_t>(communicator.rank()));
}

Measurement measure_epochs(const NlpContext& context, const Bert& net,
                           const std::function<void(const PairEpoch&)>& train) {
  seed(context.communicator);
  return measure(
      context.communicator, net->parameters(), context.epochs.timed.batches.size(),
      [&] { train(context.epochs.warm_up); }, [&] { train(context.epochs.timed); });
}

class TuttiBert : public System {
 public:
  explicit TuttiBert(const NlpContext& context) : context_(context) {}

  std::string name() const override { return "tutti, C++"; }
  std::vector<Mode> modes() const override { return {all_modes.begin(), all_modes.end()}; }

  Measurement run(Mode mode) override {
    Accelerator accelerator({.gradient_accumulation_steps = context_.options.steps,
                             .sync_policy = mode == Mode::baseline ? SyncPolicy::every_pass : SyncPolicy::automatic,
                             .fused_optimizers = false,
                             .communicator = context_.communicator});
    auto net = std::make_shared<ExportedModule>(context_.program());
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), bert_learning_rate));
    TuttiTraining<Bert> training{accelerator, model, optimizer, context_.options.batch_size};
    return measure_epochs(context_, net, [&](const PairEpoch& epoch) { train_with_tutti(mode, training, epoch); });
  }

 private:
  NlpContext context_;
};

class SingleProcessBert : public System {
 public:
  explicit SingleProcessBert(const NlpContext& context) : context_(context) {}

  std::string name() const override { return "none"; }
  std::vector<Mode> modes() const override { return {Mode::baseline}; }
  bool synchronizes() const override { return false; }

  Measurement run(Mode) override {
    const auto net = std::make_shared<ExportedModule>(context_.program());
    torch::optim::AdamW optimizer(net->parameters(), bert_learning_rate);
    return measure_epochs(context_, net, [&](const PairEpoch& epoch) {
      for (const auto& [pairs, ends_window] : epoch.batches) {
        const auto loss = loss_of(net, pairs) / context_.options.steps;
        loss.backward();
        if (ends_window) {
          optimizer.step();
          optimizer.zero_grad();
        }
      }
    });
  }

 private:
  NlpContext context_;
};

class PythonBert : public System {
 public:
  PythonBert(const NlpContext& context, PythonPeer& peer, PythonSystem system)
      : context_(context), peer_(peer), system_(std::move(system)) {
    const ExportedModule net(context_.program());
    for (const auto& parameter : net.named_parameters()) names_.push_back(parameter.key());
  }

  std::string name() const override { return system_.shown; }
  std::vector<Mode> modes() const override { return system_.modes; }
  bool synchronizes() const override { return system_.synchronizes; }
  std::string settings() const override {
    if (cap_.empty()) return {};
    return "gradient_as_bucket_view, buckets of " + cap_ + " MiB (with no_sync the fastest of 1, 4 and 25)";
  }
  void tune() override {
    if (!system_.tuned) return;
    cap_ = peer_.ask("tune");
    if (context_.communicator.rank() == 0)
      std::cerr << system_.shown << ": buckets of " << cap_ << " MiB are the fastest\n";
  }

  Measurement run(Mode mode) override {
    const auto file =
        std::filesystem::path(context_.options.folder) / ("rank" + std::to_string(context_.communicator.rank()));
    const auto taken = peer_.ask("train " + file.string() + " " + system_.name + ", " + name_of(mode));
    return {.milliseconds_per_batch = std::stod(taken),
            .after_warm_up = read(file.string() + ".warm"),
            .after_epoch = read(file.string() + ".end")};
  }

 private:
  Parameters read(const std::string& file) const {
    auto tensors = load_safetensors(file).tensors;
    Parameters parameters;
    for (const auto& name : names_) parameters.push_back(tensors.at(name));
    return parameters;
  }

  NlpContext context_;
  PythonPeer& peer_;
  PythonSystem system_;
  std::vector<std::string> names_{};
  std::string cap_{};
};

}  // namespace

at::Tensor loss_of(const std::shared_ptr<ExportedModule>& model, const Pairs& pairs) {
  const auto outputs = model->forward({}, {{"input_ids", pairs.tokens},
                                           {"token_type_ids", pairs.types},
                                           {"attention_mask", pairs.attended},
                                           {"labels", pairs.labels}});
  return outputs.toGenericDict().at("loss").toTensor();
}

std::unique_ptr<System> make_tutti_bert(const NlpContext& context) {
  return std::make_unique<TuttiBert>(context);
}

std::unique_ptr<System> make_single_process_bert(const NlpContext& context) {
  return std::make_unique<SingleProcessBert>(context);
}

std::unique_ptr<System> make_python_bert(const NlpContext& context, PythonPeer& peer, PythonSystem system) {
  return std::make_unique<PythonBert>(context, peer, std::move(system));
}

}  // namespace tutti::bench
