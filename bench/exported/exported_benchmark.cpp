#include "exported/exported_benchmark.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>

#include "command/launched.h"
#include "command/python_peer.h"
#include "command/words.h"
#include "report/spread.h"
#include "support/temporary_folder.h"
#include "tutti/exported/exported_module.h"

namespace tutti::bench {
namespace {

struct Options {
  std::string python;
  int operators = 1000;
  int repeats = 51;
};

/// Microseconds for each operator, one value for each repeat.
struct Row {
  std::string name;
  std::vector<double> forward{};
  std::vector<double> both{};
};

/// The same chain as in chain.py.
at::Tensor by_hand(const at::Tensor& x, const at::Tensor& weight, int operators) {
  at::Tensor y = x;
  for (int round = 0; round < operators / 4; ++round) y = at::neg(at::tanh(at::add(at::mul(y, weight), x)));
  return y;
}

double microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void take(Row& row, int operators, const std::function<at::Tensor()>& pass) {
  {
    const at::NoGradGuard no_grad;
    row.forward.push_back(microseconds(pass) / operators);
  }
  row.both.push_back(microseconds([&] { pass().sum().backward(); }) / operators);
}

void take(Row& row, int operators, PythonPeer& python) {
  std::istringstream answer(python.ask("again"));
  double forward = 0;
  double both = 0;
  answer >> forward >> both;
  row.forward.push_back(forward * 1e6 / operators);
  row.both.push_back(both * 1e6 / operators);
}

std::string cell(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  return number(spread.median, 2) + " (" + number(spread.least, 2) + "-" + number(spread.most, 2) + ")";
}

std::optional<Options> parse(const std::vector<std::string>& words) {
  Options options;
  CLI::App app("Times the overhead of ExportedModule for each operator, in a chain of small operators.");
  app.name("tutti bench exported");
  app.option_defaults()->always_capture_default();
  app.add_option("--python", options.python, "A Python with PyTorch: tools/peers.sh prints one")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--operators", options.operators, "Operators in the chain")->check(CLI::Range(4, 100'000));
  app.add_option("--repeats", options.repeats, "Repeats of each measurement")->check(CLI::Range(1, 10'000));
  if (!parse_words(app, words)) return std::nullopt;
  return options;
}

}  // namespace

int run_exported_benchmark(const std::vector<std::string>& words) {
  const auto options = parse(words);
  if (!options) return 0;
  const Machine machine = describe_machine();
  at::set_num_threads(1);
  const int operators = options->operators / 4 * 4;
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "chain.pt2";
  const auto script = std::filesystem::path(own_program()).parent_path() / "bench" / "chain.py";
  PythonPeer python({options->python, script, file, std::to_string(operators)});
  python.ask("again");  // after the export

  ExportedModule exported(file);
  const at::Tensor x = at::ones({8});
  const at::Tensor weight = at::full({8}, 0.5).requires_grad_();
  std::array rows{Row{.name = "the operators called in C++"}, Row{.name = "ExportedModule"},
                  Row{.name = "eager PyTorch"}};
  for (int repeat = -1; repeat < options->repeats; ++repeat) {
    if (repeat == 0) {
      for (Row& row : rows) row = {.name = row.name};  // the first repeat is a warm-up
    }
    take(rows[0], operators, [&] { return by_hand(x, weight, operators); });
    take(rows[1], operators, [&] { return exported.forward(x); });
    take(rows[2], operators, python);
  }
  python.finish();

  std::cout << "Microseconds per operator, in a chain of " << operators << " on 8 numbers; median of "
            << options->repeats << ", (min-max).\n\n| | forward | forward and backward |\n|---|---|---|\n";
  for (const Row& row : rows) {
    std::cout << "| " << row.name << " | " << cell(row.forward) << " | " << cell(row.both) << " |\n";
  }
  std::cout << "\n- one thread; the rows alternate in one run\n- " << describe(machine) << '\n';
  return 0;
}

}  // namespace tutti::bench
