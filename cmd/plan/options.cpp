#include "options.h"

#include <algorithm>
#include <thread>

#include "command_line.h"
#include "plan/units.h"
#include "tutti/core/error.h"

namespace tutti::plan {
namespace {

constexpr int at_most = 1 << 20;
constexpr int heads = 4;
constexpr double most_gradient_bytes = 1e12;

/// What has to be made of words before it is an option's value.
struct Words {
  std::vector<std::string> links{};
  std::string gradients{};
};

void add_options(CLI::App& app, PlanOptions& options, Words& words) {
  const auto count = CLI::Range(1, at_most, "NUMBER");
  const auto above_zero = CLI::Range(1e-6, 1e9, "NUMBER");
  app.add_option("--nodes", options.nodes, "Numbers of nodes")
      ->delimiter(',')
      ->check(count)
      ->default_str("1,2,4,8,16,64");
  app.add_option("--ranks-per-node", options.ranks_per_node, "Ranks on each node [one a core]")
      ->check(CLI::Range(1, 4096));
  app.add_option("--cores", options.cores, "Ranks that compute at the same time on a node [this machine's cores]")
      ->check(above_zero);
  app.add_option("--link", words.links,
                 "What nodes are linked by: NAME=MICROSECONDS,GBIT, or some of 1gbit,10gbit,25gbit,100gbit; again for "
                 "more [those four]")
      ->allow_extra_args(false);
  app.add_option("--gradients", words.gradients, "Bytes of gradients, such as 27.4MB");
  app.add_option("--model", options.model, "A safetensors file with the tensors that have gradients");
  app.add_option("--forward-ms", options.forward_ms, "Of a rank's forward pass over a micro-batch")->check(above_zero);
  app.add_option("--backward-ms", options.backward_ms, "Of its backward pass")->check(above_zero);
  app.add_option("--optimizer-ms", options.optimizer_ms, "Of the optimizer's step")->check(above_zero);
  app.add_option("--accumulation", options.accumulation, "Micro-batches in a step")
      ->check(count)
      ->capture_default_str();
  app.add_flag_callback(
      "--every-pass", [&options] { options.exchange = Exchange::in_every_pass; },
      "Gradients are exchanged in every backward pass, not once in a step");
  app.add_flag("--measure", options.measure, "Measure what this machine can do, instead of assuming it");
  app.add_option("--json", options.json, "Also write the rows to this file");
  app.add_option("--steps", options.steps, "Steps of the example that are timed")
      ->check(count)
      ->capture_default_str()
      ->group("The example GPT, measured where no gradients are given");
  for (const auto& [name, member] : example_options()) {
    app.add_option(name, options.example.*member)
        ->check(count)
        ->capture_default_str()
        ->group("The example GPT, measured where no gradients are given");
  }
  app.add_option("--part", options.part)->check(CLI::IsMember({"machine", "work"}))->group("");
  app.add_option("--results", options.results)->group("");
}

/// The model's times and gradients: all of them, or none.
void check_model(const CLI::App& app) {
  const std::vector<std::string> times{"--forward-ms", "--backward-ms", "--optimizer-ms"};
  const auto given = std::ranges::count_if(times, [&](const std::string& name) { return app.count(name) > 0; });
  const auto gradients = app.count("--gradients") + app.count("--model");
  if (gradients > 1) throw UsageError("--gradients and --model say the same: leave one of them out");
  if (gradients == 1 && given < 3) {
    throw UsageError(
        "gradients alone say nothing of the time that a model computes: give --forward-ms, --backward-ms and "
        "--optimizer-ms too");
  }
  if (gradients == 0 && given > 0) {
    throw UsageError("times alone say nothing of what has to be sent: give --gradients or --model too");
  }
}

}  // namespace

std::optional<PlanOptions> parse_plan_options(int argc, char** argv, bool under_launcher) {
  PlanOptions options;
  options.cores = std::max(1U, std::thread::hardware_concurrency());
  options.ranks_per_node = static_cast<int>(options.cores);
  Words words;
  CLI::App app("Predicts the time of an optimizer step on so many nodes, and what it is made of.");
  app.name("tutti plan");
  add_options(app, options, words);
  if (!parse_command_line(app, {argv + 1, argv + argc})) return std::nullopt;
  if (under_launcher != !options.part.empty()) {
    throw UsageError("tutti plan is for one process: start it without ranks");
  }
  check_model(app);
  if (options.example.width % heads != 0) {
    throw UsageError("--width " + std::to_string(options.example.width) +
                     " is not a multiple of the 4 attention heads");
  }
  if (!words.gradients.empty()) options.gradient_bytes = read_bytes(words.gradients);
  if (options.gradient_bytes > most_gradient_bytes) {
    throw UsageError("--gradients " + words.gradients + " is more than 1 TB: give the gradients of one model");
  }
  for (const auto& word : words.links) {
    const auto links = read_links(word);
    options.links.insert(options.links.end(), links.begin(), links.end());
  }
  if (options.links.empty()) options.links = known_links();
  return options;
}

}  // namespace tutti::plan
