// tutti-bench NAME ...: the benchmarks that need LibTorch. `tutti bench NAME ...` executes this program.
#include <c10/util/Logging.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "all_reduce/all_reduce_benchmark.h"
#include "exported/exported_benchmark.h"
#include "failures/failures_benchmark.h"
#include "flight_record/flight_record_benchmark.h"
#include "local_sgd/local_sgd_benchmark.h"
#include "nlp/nlp_benchmark.h"
#include "plan_check/plan_check_benchmark.h"
#include "scale/scale_benchmark.h"
#include "step/step_benchmark.h"
#include "sync/sync_benchmark.h"
#include "tutti/core/error.h"

namespace {

constexpr int usage_exit_code = 2;

constexpr const char* help =
    "Usage: tutti bench NAME ...\n"
    "\n"
    "Benchmarks:\n"
    "  sync           gradient synchronization: tutti, PyTorch's c10d::Reducer, a hand-written loop\n"
    "  all-reduce     a sum over the ranks of one node: tutti, Gloo, MPI, and the additions alone\n"
    "  step           one process: tutti's loop and its parts compared with the plain LibTorch loop\n"
    "  local-sgd      Local SGD, SlowMo and DiLoCo compared with synchronous training: time, bytes and loss\n"
    "  failures       time until the other ranks report a rank that is killed, stopped or cut off\n"
    "  flight-record  time to record an operation\n"
    "  nlp            BERT from Python: trained in C++, and in Python by PyTorch DDP and Accelerate\n"
    "  exported       overhead of ExportedModule for each operator\n"
    "  plan           predictions of `tutti plan` compared with measured steps\n"
    "  scale          many ranks on one machine: time of rendezvous, a few steps and exit\n"
    "\n"
    "`tutti bench NAME --help` lists the options.\n";

int run(const std::vector<std::string>& words) {
  if (words.empty()) throw tutti::UsageError("no benchmark: see 'tutti bench --help'");
  const auto& name = words.front();
  if (name == "--help" || name == "-h" || name == "help") {
    std::cout << help;
    return 0;
  }
  if (name == "sync") return tutti::bench::run_sync_benchmark({words.begin() + 1, words.end()});
  if (name == "all-reduce") return tutti::bench::run_all_reduce_benchmark({words.begin() + 1, words.end()});
  if (name == "step") return tutti::bench::run_step_benchmark({words.begin() + 1, words.end()});
  if (name == "local-sgd") return tutti::bench::run_local_sgd_benchmark({words.begin() + 1, words.end()});
  if (name == "failures") return tutti::bench::run_failures_benchmark({words.begin() + 1, words.end()});
  if (name == "flight-record") return tutti::bench::run_flight_record_benchmark({words.begin() + 1, words.end()});
  if (name == "nlp") return tutti::bench::run_nlp_benchmark({words.begin() + 1, words.end()});
  if (name == "exported") return tutti::bench::run_exported_benchmark({words.begin() + 1, words.end()});
  if (name == "plan") return tutti::bench::run_plan_check_benchmark({words.begin() + 1, words.end()});
  if (name == "scale") return tutti::bench::run_scale_benchmark({words.begin() + 1, words.end()});
  throw tutti::UsageError("there is no benchmark '" + name + "': see 'tutti bench --help'");
}

}  // namespace

int main(int argc, char** argv) {
  c10::initLogging();  // without this call LibTorch ignores TORCH_CPP_LOG_LEVEL
  try {
    return run({argv + 1, argv + argc});
  } catch (const tutti::UsageError& error) {
    std::cerr << "tutti bench: " << error.what() << '\n';
    return usage_exit_code;
  } catch (const std::exception& error) {
    std::cerr << "tutti bench: " << error.what() << '\n';
    return 1;
  }
}
