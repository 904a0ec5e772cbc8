// Trains a small GPT on text with gradient accumulation, on one process or many:
//
//   gpt --data /usr/include/c++/12
//   tutti launch -n 2 -- gpt --data /usr/include/c++/12
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <tutti/optim/schedules.h>
#include <tutti/train/accelerator.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "corpus.h"
#include "generate.h"
#include "model.h"
#include "options.h"
#include "progress.h"

namespace gpt {
namespace {

std::string processes(const tutti::Accelerator& accelerator) {
  const auto count = accelerator.num_processes();
  return count == 1 ? "1 process" : std::to_string(count) + " processes";
}

/// Mean loss over windows that are spread over the held-out text. Each rank reads its shard of them.
double held_out_loss(tutti::Accelerator& accelerator, Gpt& model, const at::Tensor& text) {
  constexpr std::size_t most_windows = 512;
  constexpr std::size_t batch_size = 16;
  const at::NoGradGuard no_grad;
  model->eval();
  const TextWindows windows(text, model->options().context);
  const auto count = std::min(windows.size(), most_windows);
  std::vector<std::size_t> mine;
  for (auto i = static_cast<std::size_t>(accelerator.rank()); i < count; i += accelerator.num_processes()) {
    mine.push_back(i * windows.size() / count);
  }
  auto sum_and_count = at::zeros({2}, at::kDouble);
  for (std::size_t first = 0; first < mine.size(); first += batch_size) {
    const auto size = std::min(batch_size, mine.size() - first);
    const auto batch = windows.get_batch({mine.data() + first, size});
    const auto loss = gpt_loss(model, batch.tokens, batch.targets).item<double>();
    sum_and_count += at::tensor({loss * static_cast<double>(size), static_cast<double>(size)}, at::kDouble);
  }
  model->train();
  accelerator.communicator().all_reduce(sum_and_count).wait();
  return (sum_and_count[0] / sum_and_count[1]).item<double>();
}

void print_start(const Options& options, const tutti::Accelerator& accelerator, const GptImpl& model, const Split& text,
                 double loss) {
  std::int64_t parameters = 0;
  for (const auto& parameter : model.parameters()) parameters += parameter.numel();
  const auto windows = options.batch_size * options.accumulation * accelerator.num_processes();
  std::cout << options.data.string() << ": " << text.training.numel() << " bytes to train on, " << text.held_out.numel()
            << " held out\n"
            << "a model of " << parameters << " parameters on " << processes(accelerator) << ", "
            << windows * options.model.context << " bytes a step\n"
            << "held-out loss " << std::fixed << std::setprecision(4) << loss << " nats per byte before training"
            << std::endl;
}

std::string describe(double loss, double tokens_per_second) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << "loss " << loss << "  " << std::setprecision(0) << tokens_per_second
       << " tokens/s";
  return text.str();
}

/// Prints the time and the synchronizations of the training.
void print_summary(tutti::Accelerator& accelerator, double seconds) {
  const auto stats = accelerator.stats();
  auto totals = at::tensor({static_cast<double>(stats.bytes_sent), stats.seconds_waiting}, at::kDouble);
  accelerator.communicator().all_reduce(totals).wait();
  if (!accelerator.is_main_process()) return;
  const auto megabytes = totals[0].item<double>() / 1e6;
  const auto waiting = totals[1].item<double>() / accelerator.num_processes();
  std::cout << std::fixed << std::setprecision(1) << seconds << " s of training on " << processes(accelerator) << '\n'
            << stats.passes << " backward passes on each: " << stats.syncs << " synchronizations done, "
            << stats.syncs_skipped << " avoided\n"
            << megabytes << " MB of gradients moved between processes\n"
            << 100 * waiting / seconds << " % of the time spent waiting for synchronization" << std::endl;
}

void train(const Options& options) {
  // Before all communication, so that a wrong path ends every rank at once.
  const auto text = hold_out(read_text(options.data), options.model.context);

  tutti::Accelerator accelerator({.gradient_accumulation_steps = options.accumulation});
  const bool speaks = accelerator.is_main_process();
  auto loader = accelerator.data_loader(TextWindows(text.training, options.model.context),
                                        {.batch_size = options.batch_size, .shuffle = true, .seed = options.seed});

  torch::manual_seed(options.seed);
  Gpt net(options.model);
  torch::optim::AdamW adamw(
      net->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.99}).weight_decay(options.weight_decay));
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, adamw, tutti::cosine_with_warmup(options.warmup, options.steps));

  const auto before = held_out_loss(accelerator, model, text.held_out);
  if (speaks) print_start(options, accelerator, *model, text, before);

  Progress progress(options.steps, speaks);
  std::int64_t tokens = 0;
  std::int64_t step = 0;
  double smooth_loss = before;
  while (step < options.steps) {
    for (const auto& batch : loader) {
      auto window = accelerator.accumulate(model);
      const auto loss = gpt_loss(model, batch.tokens, batch.targets);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, options.max_gradient_norm);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();

      tokens += batch.tokens.numel() * accelerator.num_processes();
      smooth_loss += 0.02 * (loss.item<double>() - smooth_loss);
      if (!accelerator.sync_gradients()) continue;
      progress.show(++step, describe(smooth_loss, static_cast<double>(tokens) / progress.seconds()));
      if (step == options.steps) break;
    }
  }
  const auto seconds = progress.seconds();

  const auto after = held_out_loss(accelerator, model, text.held_out);
  if (speaks) std::cout << "\na sample:\n" << generate(model, options.sample) << "\n\n";
  print_summary(accelerator, seconds);
  if (speaks) {
    std::cout << std::setprecision(4) << "held-out loss " << before << " -> " << after << " nats per byte" << std::endl;
  }
}

int report(const std::string& message, int exit_code) {
  std::cerr << "gpt: " << message.substr(0, message.find('\n')) << std::endl;
  return exit_code;
}

int run(int argc, char** argv) {
  try {
    if (const auto options = parse_options(argc, argv)) train(*options);
    return 0;
  } catch (const OptionError& error) {
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
