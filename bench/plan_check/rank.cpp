#include "plan_check/rank.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <chrono>

#include "report/results.h"
#include "tutti/train/accelerator.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

// After the first step the buckets are rebuilt in the order of the gradients.
constexpr int steps_before = 3;

}  // namespace

int run_plan_check_rank(const PlanCheckOptions& options, const Environment& environment) {
  at::set_num_threads(1);
  const auto communicator = Communicator::connect(environment);
  const bool once = exchange_named(options.exchanges.front()) == plan::Exchange::once_a_step;
  Accelerator accelerator({.gradient_accumulation_steps = options.accumulation,
                           .sync_policy = SyncPolicy::every_pass,
                           .communicator = communicator});
  auto net = make_model(options.example);
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  Row milliseconds;
  communicator.barrier().wait();
  for (int step = -steps_before; step < options.steps; ++step) {
    const auto begin = Clock::now();
    for (int pass = 1; pass <= options.accumulation; ++pass) {
      const auto quiet = accelerator.no_sync(model, once && pass < options.accumulation);
      accelerator.backward(loss_of(model, options.example));
    }
    optimizer.step();
    optimizer.zero_grad();
    if (step >= 0)
      milliseconds.values.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  communicator.barrier().wait();  // rank 0 may run the coordinator
  if (environment.rank == 0) write_results(options.results, {.rows = {milliseconds}});
  return 0;
}

}  // namespace tutti::bench
