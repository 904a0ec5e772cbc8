// The GPT of examples/gpt with tutti's Trainer: schedule, clipping, mixed precision, evaluation, checkpoints, metrics,
// callbacks. Ctrl-C saves and ends the run with exit code 130; --resume resumes it with the same bits:
//
//   tutti launch -n 2 -- trainer --data /usr/include/c++/12 --project runs/first
//   tutti launch -n 2 --max-restarts 3 -- trainer --data /usr/include/c++/12 --project runs/first --resume
//   tutti report runs/first
#include <c10/util/Exception.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <tutti/optim/schedules.h>
#include <tutti/train/accelerator.h>
#include <tutti/train/callbacks/best_model.h>
#include <tutti/train/callbacks/early_stopping.h>
#include <tutti/train/callbacks/ema.h>
#include <tutti/train/callbacks/nan_guard.h>
#include <tutti/train/trainer.h>

#include <iostream>
#include <memory>
#include <string>

#include "digest.h"
#include "gpt/corpus.h"
#include "gpt/model.h"
#include "trainer/options.h"

namespace gpt {
namespace {

/// Mean loss of windows that lie spread over the held-out text, split among the ranks.
double held_out_loss(tutti::Accelerator& accelerator, Gpt& model, const at::Tensor& text) {
  constexpr std::size_t most_windows = 256;
  const TextWindows windows(text, model->options().context);
  const std::size_t count = std::min(windows.size(), most_windows);
  const at::Tensor sum_and_count = at::zeros({2}, at::kDouble);
  for (auto i = static_cast<std::size_t>(accelerator.rank()); i < count; i += accelerator.num_processes()) {
    const TextBatch batch = windows.get_batch({i * windows.size() / count});
    const at::Tensor loss = accelerator.autocast([&] { return gpt_loss(model, batch.tokens, batch.targets); });
    sum_and_count[0] += loss.item<double>();
    sum_and_count[1] += 1;
  }
  accelerator.communicator().all_reduce(sum_and_count).wait();
  return (sum_and_count[0] / sum_and_count[1]).item<double>();
}

std::string_view to_string(tutti::StopReason reason) {
  switch (reason) {
    case tutti::StopReason::signal:
      return "stopped by a signal: --resume goes on";
    case tutti::StopReason::callback:
      return "stopped early";
    default:
      return "finished";
  }
}

tutti::StopReason train(const TrainerProgramOptions& options) {
  const Split text = hold_out(read_text(options.data), options.model.context);
  // Only a checkpoint of a step with an evaluation can be the best one.
  const bool keep_best = options.evaluate_every > 0 && options.save_every % options.evaluate_every == 0;
  tutti::Accelerator accelerator({.gradient_accumulation_steps = options.accumulation,
                                  .mixed_precision = options.precision,
                                  .project = {.project_dir = options.project,
                                              .retention = {.keep_last = options.keep_last, .keep_best = keep_best}}});
  auto loader = accelerator.data_loader(TextWindows(text.training, options.model.context),
                                        {.batch_size = options.batch_size, .shuffle = true, .seed = options.seed});

  torch::manual_seed(options.seed);
  Gpt net(options.model);
  torch::optim::AdamW adamw(
      net->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.99}).weight_decay(options.weight_decay));
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, adamw, tutti::cosine_with_warmup(options.warmup, options.steps));

  tutti::Trainer trainer(accelerator, model, optimizer, scheduler, loader,
                         {.loss = [](Gpt& gpt, TextBatch& batch) { return gpt_loss(gpt, batch.tokens, batch.targets); },
                          .samples = [](const TextBatch& batch) { return batch.tokens.size(0); },
                          .tokens = [](const TextBatch& batch) { return batch.tokens.numel(); }},
                         {.max_steps = options.steps,
                          .max_grad_norm = options.max_grad_norm,
                          .log_every = options.log_every,
                          .evaluate_every = options.evaluate_every,
                          .save_every = options.save_every,
                          .resume = options.resume,
                          .tensorboard = options.tensorboard,
                          .run_name = options.project.filename().string(),
                          .hyperparameters = {{"lr", options.learning_rate},
                                              {"steps", options.steps},
                                              {"batch_size", options.batch_size},
                                              {"accumulation", std::int64_t{options.accumulation}},
                                              {"processes", std::int64_t{accelerator.num_processes()}},
                                              {"precision", std::string(tutti::to_string(options.precision))},
                                              {"width", options.model.width},
                                              {"layers", options.model.layers},
                                              {"context", options.model.context}}});
  trainer.set_evaluation([&] { return tutti::Scalars{{"loss", held_out_loss(accelerator, model, text.held_out)}}; });
  trainer.add_callback(std::make_shared<tutti::NanGuard>());
  if (options.evaluate_every > 0) trainer.add_callback(std::make_shared<tutti::BestModel>());
  if (options.ema > 0) trainer.add_callback(std::make_shared<tutti::Ema>(tutti::EmaOptions{.decay = options.ema}));
  if (options.patience > 0) {
    trainer.add_callback(
        std::make_shared<tutti::EarlyStopping>(tutti::EarlyStoppingOptions{.patience = options.patience}));
  }

  const tutti::StopReason reason = trainer.fit();
  accelerator.print(std::string(to_string(reason)) + " after " + std::to_string(trainer.global_step()) + " steps");
  if (reason != tutti::StopReason::signal) accelerator.print("digest " + digest(*model));
  return reason;
}

int report(const std::string& message, int exit_code) {
  std::cerr << "trainer: " << message.substr(0, message.find('\n')) << std::endl;
  return exit_code;
}

int run(int argc, char** argv) {
  constexpr int interrupted = 130;  // a shell's exit code for SIGINT, so that no further command runs on this result
  try {
    const auto options = parse_trainer_options(argc, argv);
    return options && train(*options) == tutti::StopReason::signal ? interrupted : 0;
  } catch (const tutti::UsageError& error) {
    return report(error.what(), 2);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), 1);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  return gpt::run(argc, argv);
}
