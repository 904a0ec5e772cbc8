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

/// The dropout of all systems, in C++ and in Python.
void seed(const Communicator& communicator) {
  torch::manual_seed(1 + static_cast<std::uint64_t>(communicator.rank()));
}

Measurement measure_epochs(const NlpArena& arena, const Bert& net, const std::function<void(const PairEpoch&)>& train) {
  seed(arena.communicator);
  return measure(
      arena.communicator, net->parameters(), arena.epochs.timed.batches.size(), [&] { train(arena.epochs.warm_up); },
      [&] { train(arena.epochs.timed); });
}

class TuttiBert : public System {
 public:
  explicit TuttiBert(const NlpArena& arena) : arena_(arena) {}

  std::string name() const override { return "tutti, C++"; }
  std::vector<Mode> modes() const override { return {all_modes.begin(), all_modes.end()}; }

  Measurement run(Mode mode) override {
    Accelerator accelerator({.gradient_accumulation_steps = arena_.options.steps,
                             .sync_policy = mode == Mode::baseline ? SyncPolicy::every_pass : SyncPolicy::automatic,
                             .fused_optimizers = false,
                             .communicator = arena_.communicator});
    auto net = std::make_shared<ExportedModule>(arena_.program());
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), bert_learning_rate));
    TuttiTraining<Bert> training{accelerator, model, optimizer, arena_.options.batch_size};
    return measure_epochs(arena_, net, [&](const PairEpoch& epoch) { train_with_tutti(mode, training, epoch); });
  }

 private:
  NlpArena arena_;
};

class LoneBert : public System {
 public:
  explicit LoneBert(const NlpArena& arena) : arena_(arena) {}

  std::string name() const override { return "none"; }
  std::vector<Mode> modes() const override { return {Mode::baseline}; }
  bool synchronizes() const override { return false; }

  Measurement run(Mode) override {
    const auto net = std::make_shared<ExportedModule>(arena_.program());
    torch::optim::AdamW optimizer(net->parameters(), bert_learning_rate);
    return measure_epochs(arena_, net, [&](const PairEpoch& epoch) {
      for (const auto& [pairs, ends_window] : epoch.batches) {
        const auto loss = loss_of(net, pairs) / arena_.options.steps;
        loss.backward();
        if (ends_window) {
          optimizer.step();
          optimizer.zero_grad();
        }
      }
    });
  }

 private:
  NlpArena arena_;
};

class PythonBert : public System {
 public:
  PythonBert(const NlpArena& arena, PythonPeer& peer, PythonSystem system)
      : arena_(arena), peer_(peer), system_(std::move(system)) {
    const ExportedModule net(arena_.program());
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
    if (arena_.communicator.rank() == 0)
      std::cerr << system_.shown << ": buckets of " << cap_ << " MiB are the fastest\n";
  }

  Measurement run(Mode mode) override {
    const auto file =
        std::filesystem::path(arena_.options.folder) / ("rank" + std::to_string(arena_.communicator.rank()));
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

  NlpArena arena_;
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

std::unique_ptr<System> make_tutti_bert(const NlpArena& arena) {
  return std::make_unique<TuttiBert>(arena);
}

std::unique_ptr<System> make_lone_bert(const NlpArena& arena) {
  return std::make_unique<LoneBert>(arena);
}

std::unique_ptr<System> make_python_bert(const NlpArena& arena, PythonPeer& peer, PythonSystem system) {
  return std::make_unique<PythonBert>(arena, peer, std::move(system));
}

}  // namespace tutti::bench
