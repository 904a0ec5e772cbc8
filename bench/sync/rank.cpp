#include "sync/rank.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "sync/compare.h"
#include "sync/gloo_group.h"
#include "sync/table.h"
#include "tutti/core/error.h"

namespace tutti::bench {

int run_sync_rank(SyncOptions options, const Environment& environment) {
  at::set_num_threads(1);
  Report report;
  const auto communicator = Communicator::connect(environment);
  const Workload workload(options, communicator.rank(), communicator.size());
  const BenchContext context{workload, communicator};

  const auto group = make_gloo_group(communicator, environment);
  std::vector<std::unique_ptr<System>> systems;
  const bool several_nodes = environment.num_nodes > 1;
  systems.push_back(make_tutti_system(context));
  systems.push_back(make_tutti_fused_system(context));
  if (several_nodes) {
    systems.push_back(make_tutti_encoded_system(context, bf16_codec()));
    systems.push_back(make_tutti_encoded_system(context, int8_codec()));
  }
  auto c10d_reducer = make_c10d_reducer_system(context, group);
  System& reference = *c10d_reducer;
  if (options.peers) {
    systems.push_back(std::move(c10d_reducer));
    if (several_nodes) systems.push_back(make_c10d_fp16_system(context, group));
    systems.push_back(make_hand_written_system(context, group));
  }
  systems.push_back(make_no_communication_system(context));
  for (const std::string& name : options.selection.systems) {
    if (std::ranges::any_of(systems, [&](const auto& system) { return system->name() == name; })) continue;
    std::string names;
    for (const auto& system : systems) names += (names.empty() ? "" : "; ") + system->name();
    throw UsageError("--systems: there is no system \"" + name + "\" here. Choose from: " + names + ".");
  }
  const bool whole_windows = options.batches % options.steps == 0;
  const auto results = compare(systems, reference, copy_of(workload.make_model()->parameters()), whole_windows,
                               communicator, options.repeats, options.selection);

  int code = 0;
  if (communicator.rank() == 0) {
    if (options.results.empty()) {
      options.ranks = environment.world_size;
      options.nodes = environment.num_nodes;
      code = report_sync(report, results, options, describe_sync_model(options));
    } else {
      write_results(options.results, results);
    }
  }
  communicator.barrier().wait();  // rank 0 serves the group's store, so all ranks must finish first
  return code;
}

std::string describe_sync_model(const SyncOptions& options) {
  return describe_gpt(options) + "; LibTorch's AdamW unless a row names another; one thread for each rank";
}

}  // namespace tutti::bench
