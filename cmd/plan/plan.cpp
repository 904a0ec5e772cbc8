// `tutti plan`: how long a step would take on more nodes. A program of its own, because what it measures needs
// LibTorch.
#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "buckets.h"
#include "measure_machine.h"
#include "measure_work.h"
#include "options.h"
#include "plan/figures.h"
#include "plan/predict.h"
#include "run_main.h"
#include "table.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/launch/launch.h"

namespace tutti::plan {
namespace {

int cores_here() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// Lets `ranks` of this program measure a part, and returns what rank 0 leaves.
std::ifstream measured(const PlanOptions& options, const std::string& part, int ranks) {
  // A file without a name: it cannot be left behind. The ranks open it by this process's descriptor.
  const int descriptor = ::memfd_create("tutti-plan", MFD_CLOEXEC);
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "cannot make a file in memory");
  const std::string file = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor);
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe"),
                                   "--part",
                                   part,
                                   "--results",
                                   file,
                                   "--steps",
                                   std::to_string(options.steps)};
  const auto words = words_of(options.example);
  command.insert(command.end(), words.begin(), words.end());
  const std::string subject =
      part == "work" ? "no model is given, so the example is measured for some seconds: " + describe(options.example) +
                           ". Options for a model of your own: tutti plan --help"
                     : "the machine is measured for some seconds: a barrier, sums, messages";
  std::cerr << "tutti plan: " << subject << '\n';
  if (launch({.ranks_per_node = ranks, .command = command}) != 0) {
    throw std::runtime_error("the ranks that measure have failed: see their output above");
  }
  std::ifstream in(file);
  ::close(descriptor);
  return in;
}

/// One of those ranks.
int measure_part(const PlanOptions& options, const Environment& environment) {
  // LibTorch would warn of every connection that the machine has no name for its other end.
  c10::initLogging();
  FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, c10::GLOG_ERROR);
  at::set_num_threads(1);
  std::ofstream out;
  if (environment.rank == 0) out.open(options.results);
  if (options.part == "machine") {
    write(out, measure_machine(environment));
  } else {
    write(out, measure_work(options.example, options.steps, Communicator::connect(environment)));
  }
  out.close();
  return environment.rank == 0 && !out ? 1 : 0;
}

Machine machine_for(const PlanOptions& options) {
  Machine machine = assumed_machine;
  if (options.measure) {
    auto in = measured(options, "machine", 2);
    machine = read_machine(in);
  }
  machine.cores = options.cores;
  return machine;
}

Work work_for(const PlanOptions& options) {
  Work work;
  if (options.measures_example()) {
    auto in = measured(options, "work", std::min(options.ranks_per_node, cores_here()));
    work = read_work(in);
  } else {
    work = {
        .forward_ms = options.forward_ms,
        .backward_ms = options.backward_ms,
        .optimizer_ms = options.optimizer_ms,
        .buckets = options.model.empty() ? buckets_of_bytes(options.gradient_bytes) : buckets_of_file(options.model)};
  }
  work.micro_batches = options.accumulation;
  return work;
}

std::vector<Row> rows_of(const PlanOptions& options, const Basis& basis) {
  std::vector<Row> rows;
  for (const int nodes : options.nodes) {
    const Layout layout{.nodes = nodes, .ranks_per_node = options.ranks_per_node};
    for (const Link& link : options.links) {
      rows.push_back({layout, link, predict(basis.machine, link, basis.work, layout, options.exchange)});
      if (nodes == 1) break;  // no link has a part in it
    }
  }
  return rows;
}

int make_plan(const PlanOptions& options) {
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  if (!json)
    throw UsageError("cannot write --json " + options.json +
                     ": give a file's name in a folder that exists and is writable");
  const Basis basis{.machine = machine_for(options),
                    .work = work_for(options),
                    .model = options.measures_example() ? "measured here: " + describe(options.example)
                             : options.model.empty()    ? "as given"
                                                        : options.model + " as given"};
  const auto rows = rows_of(options, basis);
  std::cout << plan_markdown(rows, options, basis);
  if (!options.json.empty()) json << plan_json(rows, options, basis) << std::flush;
  if (!json) throw std::runtime_error("cannot write " + options.json);
  return 0;
}

int run(int argc, char** argv) {
  const auto environment = read_environment();
  const bool under_launcher = environment.launcher != "none";
  const auto options = parse_plan_options(argc, argv, under_launcher);
  if (!options) return 0;
  return under_launcher ? measure_part(*options, environment) : make_plan(*options);
}

}  // namespace
}  // namespace tutti::plan

int main(int argc, char** argv) {
  return tutti::run_main([&] { return tutti::plan::run(argc, argv); });
}
