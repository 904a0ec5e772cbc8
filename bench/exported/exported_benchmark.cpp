#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>

#include <chrono>
#include <functional>
#include <sstream>

#include "benchmarks.h"
#include "command/python_peer.h"
#include "report/report.h"
#include "report/statistics.h"
#include "support/temporary_folder.h"
#include "tutti/exported/exported_module.h"

namespace tutti::bench {
namespace {

struct ExportedOptions : CommonOptions {
  std::string python;
  int operators = 1000;
  int repeats = 51;
};

ExportedOptions parse_exported_options(const Invocation& invocation) {
  ExportedOptions options;
  ArgumentParser parser(
      "exported", "Times the overhead of ExportedModule for each operator, in a chain of small operators.", options);
  parser.add_option("--python", options.python, "A Python with PyTorch: tools/peers.sh prints one")
      ->required()
      ->check(CLI::ExistingFile);
  parser.add_option("--operators", options.operators, "Operators in the chain")->check(CLI::Range(4, 100'000));
  parser.add_option("--repeats", options.repeats, "Repeats of each measurement")->check(CLI::Range(1, 10'000));
  parser.parse_words(invocation);
  return options;
}

/// Seconds of a forward pass without gradients, and of a forward and a backward pass.
struct Times {
  double forward = 0;
  double both = 0;
};

/// The same chain as in chain.py.
at::Tensor by_hand(const at::Tensor& x, const at::Tensor& weight, int operators) {
  at::Tensor y = x;
  for (int round = 0; round < operators / 4; ++round) y = at::neg(at::tanh(at::add(at::mul(y, weight), x)));
  return y;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Times time_of(const std::function<at::Tensor()>& pass) {
  Times times;
  {
    const at::NoGradGuard no_grad;
    times.forward = seconds_of(pass);
  }
  times.both = seconds_of([&] { pass().sum().backward(); });
  return times;
}

Times time_of(PythonPeer& python) {
  std::istringstream answer(python.ask("again"));
  Times times;
  answer >> times.forward >> times.both;
  return times;
}

int report_exported(Report& report, const Results& results, const ExportedOptions& options, int operators) {
  report.add_text("Microseconds per operator, in a chain of " + std::to_string(operators) +
                  " on 8 numbers; median of " + std::to_string(options.repeats) + ", (min-max).");
  report.add_table({"", "forward", "forward and backward"});
  for (const auto& system : results.values_of("system")) {
    const auto values = [&](const char* pass) { return results.values({{"system", system}, {"pass", pass}}); };
    report.add_row({system.get<std::string>(), cell(values("forward"), 2), cell(values("forward and backward"), 2)});
  }
  report.add_note("one thread; the rows alternate in one run");
  report.add_json(results, {{"unit", "us"}, {"operators", operators}});
  return report.finish(options.json);
}

}  // namespace

int run_exported_benchmark(const Invocation& invocation) {
  const auto options = parse_exported_options(invocation);
  Report report;
  at::set_num_threads(1);
  const int operators = options.operators / 4 * 4;
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "chain.pt2";
  PythonPeer python({options.python, script("chain.py"), file, std::to_string(operators)});
  python.ask("again");  // after the export

  ExportedModule exported(file);
  const at::Tensor x = at::ones({8});
  const at::Tensor weight = at::full({8}, 0.5).requires_grad_();
  Results results;
  for (int repeat = -1; repeat < options.repeats; ++repeat) {
    const auto add = [&](const char* system, const Times& times) {
      if (repeat < 0) return;  // the first repeat is a warm-up
      const double unit = 1e6 / operators;
      results.row({{"system", system}, {"pass", "forward"}}).values.push_back(times.forward * unit);
      results.row({{"system", system}, {"pass", "forward and backward"}}).values.push_back(times.both * unit);
    };
    add("the operators called in C++", time_of([&] { return by_hand(x, weight, operators); }));
    add("ExportedModule", time_of([&] { return exported.forward(x); }));
    add("eager PyTorch", time_of(python));
  }
  python.finish();
  return report_exported(report, results, options, operators);
}

}  // namespace tutti::bench
