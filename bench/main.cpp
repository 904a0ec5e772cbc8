// tutti-bench NAME ...: the benchmarks that need LibTorch. `tutti bench NAME ...` executes this program.
#include <c10/util/Logging.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

constexpr int usage_exit_code = 2;

struct Benchmark {
  const char* name;
  const char* summary;
  int (*run)(const Invocation&);
};

constexpr std::array benchmarks{
    Benchmark{"sync", "gradient synchronization: tutti, PyTorch's c10d::Reducer, a hand-written loop",
              &run_sync_benchmark},
    Benchmark{"all-reduce", "a sum over the ranks of one node: tutti, Gloo, MPI, and the additions alone",
              &run_all_reduce_benchmark},
    Benchmark{"step", "one process: tutti's loop and its parts compared with the plain LibTorch loop",
              &run_step_benchmark},
    Benchmark{"local-sgd", "Local SGD, SlowMo and DiLoCo compared with synchronous training: time, bytes and loss",
              &run_local_sgd_benchmark},
    Benchmark{"failures", "time until the other ranks report a rank that is killed, stopped or cut off",
              &run_failures_benchmark},
    Benchmark{"coordinator", "time until idle ranks are told of a rank that is killed or stopped",
              &run_coordinator_benchmark},
    Benchmark{"flight-record", "time to record an operation", &run_flight_record_benchmark},
    Benchmark{"nlp", "BERT from Python: trained in C++, and in Python by PyTorch DDP and Accelerate",
              &run_nlp_benchmark},
    Benchmark{"exported", "overhead of ExportedModule for each operator", &run_exported_benchmark},
    Benchmark{"plan", "predictions of `tutti plan` compared with measured steps", &run_plan_check_benchmark},
    Benchmark{"scale", "many ranks on one machine: time of rendezvous, a few steps and exit", &run_scale_benchmark}};

void print_help() {
  std::cout << "Usage: tutti bench NAME ...\n\nBenchmarks:\n";
  for (const auto& benchmark : benchmarks) {
    const std::string name = benchmark.name;
    std::cout << "  " << name << std::string(15 - name.size(), ' ') << benchmark.summary << '\n';
  }
  std::cout << "\n`tutti bench NAME --help` lists the options.\n";
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) throw UsageError("no benchmark: see 'tutti bench --help'");
  const auto& name = words.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_help();
    return 0;
  }
  const auto found = std::ranges::find(benchmarks, name, &Benchmark::name);
  if (found == benchmarks.end()) throw UsageError("there is no benchmark '" + name + "': see 'tutti bench --help'");
  return found->run({.words = {words.begin() + 1, words.end()}, .environment = read_environment()});
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  c10::initLogging();  // without this call LibTorch ignores TORCH_CPP_LOG_LEVEL
  try {
    return tutti::bench::run({argv + 1, argv + argc});
  } catch (const tutti::bench::Exit& exit) {
    return exit.code;
  } catch (const tutti::UsageError& error) {
    std::cerr << "tutti bench: " << error.what() << '\n';
    return tutti::bench::usage_exit_code;
  } catch (const std::exception& error) {
    std::cerr << "tutti bench: " << error.what() << '\n';
    return 1;
  }
}
