#include "local_sgd/rank.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <chrono>
#include <iostream>

#include "gpt/corpus.h"
#include "gpt/model.h"
#include "local_sgd/methods.h"
#include "local_sgd/table.h"
#include "report/statistics.h"
#include "tutti/optim/schedules.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::bench {
namespace {

/// Mean loss over windows that are spread over the held-out text. Every rank computes the same value.
double held_out_loss(gpt::Gpt& model, const at::Tensor& text, std::int64_t context) {
  constexpr std::size_t windows_read = 256;
  constexpr std::size_t at_once = 32;
  const at::NoGradGuard no_grad;
  const gpt::TextWindows windows(text, context);
  const std::size_t count = std::min(windows.size(), windows_read);
  double sum = 0;
  for (std::size_t first = 0; first < count; first += at_once) {
    std::vector<std::size_t> indices;
    for (std::size_t i = first; i < std::min(first + at_once, count); ++i)
      indices.push_back(i * windows.size() / count);
    const auto batch = windows.get_batch(indices);
    sum += gpt::gpt_loss(model, batch.tokens, batch.targets).item<double>() * static_cast<double>(indices.size());
  }
  return sum / static_cast<double>(count);
}

/// The first half of the held-out text, on which options are chosen, or the second half.
at::Tensor half_of(const at::Tensor& text, bool first) {
  const std::int64_t half = text.size(0) / 2;
  return first ? text.slice(0, 0, half) : text.slice(0, half);
}

Labels train(const LocalSGDBenchOptions& options, const Method& method, std::uint64_t seed, const gpt::Split& text,
             const Communicator& communicator) {
  Accelerator accelerator({.gradient_codec = method.gradient_codec, .communicator = communicator});
  auto loader = accelerator.data_loader(gpt::TextWindows(text.training, options.context),
                                        {.batch_size = options.batch_size, .shuffle = true, .seed = seed});
  torch::manual_seed(seed);
  gpt::Gpt net(gpt::GptOptions{.width = options.width,
                               .layers = options.layers,
                               .heads = 4,
                               .context = options.context,
                               .feed_forward = 4 * options.width});
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net,
      torch::optim::AdamW(net->parameters(),
                          torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.99}).weight_decay(0.1)),
      cosine_with_warmup(options.steps / 20, options.steps + 1));  // never 0: SlowMo divides by the rate

  accelerator.wait_for_everyone();
  const auto began = std::chrono::steady_clock::now();
  LocalSGD local_sgd(accelerator, model, method.options);
  std::optional<LocalSgdAlgorithm> outer;
  if (method.outer_alone) {
    outer.emplace(named_parameters_of(*net), std::vector<NamedParameter>{}, nullptr,
                  *communicator.split(communicator.rank()), *method.outer_alone);
  }
  std::int64_t step = 0;
  while (step < options.steps) {
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(gpt::gpt_loss(model, batch.tokens, batch.targets));
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      local_sgd.step();
      if (outer) outer->step();
      if (++step == options.steps) break;
    }
  }
  local_sgd.finish();
  if (outer) outer->finish();
  accelerator.wait_for_everyone();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const LocalSgdStats stats = local_sgd.stats();
  const bool local = method.options.enabled;
  return {{"method", method.name},
          {"seed", seed},
          {"seconds", seconds},
          {"bytes_sent", static_cast<double>(local ? stats.bytes_sent : accelerator.stats().bytes_sent)},
          {"seconds_blocked", local ? stats.seconds_blocked : accelerator.stats().seconds_waiting},
          {"held_out_loss", held_out_loss(model, half_of(text.held_out, options.validate), options.context)},
          {"local_steps", method.interval()}};
}

std::string describe(const Labels& run) {
  return run.at("method").get<std::string>() + ", seed " + run.at("seed").dump() + ": " + number(run.at("seconds"), 2) +
         " s, " + number(run.at("bytes_sent").get<double>() / 1e6, 2) + " MB, stalled " +
         number(run.at("seconds_blocked"), 2) + " s, held-out loss " + number(run.at("held_out_loss"), 4);
}

}  // namespace

int run_local_sgd_rank(LocalSGDBenchOptions options, const Environment& environment) {
  at::set_num_threads(1);
  const gpt::Split text = gpt::hold_out(gpt::read_text(options.data), options.context);
  const auto communicator = Communicator::connect(environment);
  Report report;
  Results runs;
  // The outer loop is over seeds, so that a change of the machine's speed affects all methods.
  for (int seed = 1; seed <= options.seeds; ++seed) {
    for (const Method& method : selected_methods(options)) {
      const auto run = train(options, method, static_cast<std::uint64_t>(seed), text, communicator);
      runs.rows.push_back({.labels = run});
      if (communicator.rank() == 0) std::cerr << describe(run) << std::endl;
    }
  }
  if (communicator.rank() == 0) {
    if (options.results.empty()) {
      options.ranks = environment.world_size;
      options.nodes = environment.num_nodes;
      report_local_sgd(report, runs, options);
    } else {
      write_results(options.results, runs);
    }
  }
  communicator.barrier().wait();
  return 0;
}

}  // namespace tutti::bench
