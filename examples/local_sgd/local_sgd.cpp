// The loop of the Local SGD guide: gradient accumulation over two batches. Parameters are averaged every eight
// optimizer steps; gradients are not synchronized.
//
//   tutti launch -n 2 -- local_sgd --data /usr/include/c++/12
#include <c10/util/Exception.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <tutti/optim/schedules.h>
#include <tutti/train/accelerator.h>
#include <tutti/train/local_sgd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "digest.h"
#include "gpt/corpus.h"
#include "gpt/model.h"

namespace {

struct Options {
  std::string data;
  std::int64_t steps = 400;  ///< optimizer steps
  std::int64_t local_sgd_steps = 8;
  bool disabled = false;
  bool diloco = false;
  std::string project;          ///< folder of checkpoints; empty: none
  std::int64_t save_every = 0;  ///< optimizer steps
  bool resume = false;
};

tutti::LocalSGDOptions local_sgd_options(const Options& options) {
  tutti::LocalSGDOptions result{.local_sgd_steps = options.local_sgd_steps, .enabled = !options.disabled};
  if (options.diloco) {
    result.algorithm = {.outer_optimizer = tutti::OuterOptimizer::diloco,
                        .diloco = {.lr = 0.7, .momentum = 0.6},
                        .streaming = {.fragments = 2,
                                      .overlap_steps = std::max<std::int64_t>(0, options.local_sgd_steps / 2 - 1),
                                      .keep_local_progress = true},
                        .wire = tutti::WireFormat::bf16};
  }
  return result;
}

void train(const Options& options) {
  constexpr std::int64_t context = 64;
  constexpr std::int64_t width = 64;
  tutti::Accelerator accelerator({.gradient_accumulation_steps = 2, .project = {.project_dir = options.project}});
  const gpt::Split text = gpt::hold_out(gpt::read_text(options.data), context);
  auto training_dataloader =
      accelerator.data_loader(gpt::TextWindows(text.training, context), {.batch_size = 4, .shuffle = true});
  torch::manual_seed(1);
  gpt::Gpt net(gpt::GptOptions{.width = width, .layers = 2, .heads = 4, .context = context, .feed_forward = 4 * width});
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net, torch::optim::AdamW(net->parameters(), 3e-3), tutti::cosine_with_warmup(options.steps / 20, options.steps));
  double loss_sum = 0;
  int losses = 0;
  std::int64_t steps = 0;
  tutti::LocalSGD local_sgd(accelerator, model, local_sgd_options(options));
  if (options.resume) {
    if (const auto resumed = accelerator.load_latest_state()) steps = resumed->step;
  }
  while (steps < options.steps) {
    for (auto& batch : training_dataloader) {
      auto window = accelerator.accumulate(model);
      auto loss = gpt::gpt_loss(model, batch.tokens, batch.targets);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      local_sgd.step();

      loss_sum += loss.item<double>();
      ++losses;
      if (!accelerator.sync_gradients()) continue;
      if (++steps % 50 == 0) {
        accelerator.print("step " + std::to_string(steps) + "  loss " + std::to_string(loss_sum / losses));
        loss_sum = 0;
        losses = 0;
      }
      if (options.save_every > 0 && steps % options.save_every == 0) accelerator.save_state();
      if (steps == options.steps) break;
    }
  }
  local_sgd.finish();
  const double megabytes = 1e-6 * static_cast<double>(local_sgd.stats().bytes_sent + accelerator.stats().bytes_sent);
  accelerator.print("digest " + digest(*model));
  accelerator.print(std::to_string(local_sgd.stats().rounds) + " rounds of local updates; " +
                    std::to_string(megabytes) + " MB sent by this rank");
}

int report(const std::string& message, int exit_code) {
  std::cerr << "local_sgd: " << message.substr(0, message.find('\n')) << std::endl;
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Train a small GPT with Local SGD", "local_sgd");
  const CLI::Range count(1, 1'000'000'000, "POSITIVE");
  app.add_option("--data", options.data, "File or folder of text")->required();
  app.add_option("--steps", options.steps, "Optimizer steps")->check(count)->capture_default_str();
  app.add_option("--local-sgd-steps", options.local_sgd_steps, "Optimizer steps between averages")
      ->check(count)
      ->capture_default_str();
  app.add_flag("--disabled", options.disabled, "Synchronize gradients in every step instead of averaging");
  app.add_flag("--diloco", options.diloco, "Streaming DiLoCo in bf16 in the background, instead of averages");
  auto* project = app.add_option("--project", options.project, "Folder for checkpoints");
  app.add_option("--save-every", options.save_every, "Optimizer steps between checkpoints")
      ->check(count)
      ->needs(project);
  app.add_flag("--resume", options.resume, "Resume from the project's newest checkpoint")->needs(project);
  try {
    app.parse(argc, argv);
    train(options);
    return 0;
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : report(error.what(), 2);
  } catch (const tutti::UsageError& error) {
    return report(error.what(), 2);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), 1);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}
