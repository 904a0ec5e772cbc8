#pragma once
// The benchmarks of `tutti bench NAME`. A process that a launcher started is one of the ranks; any other process starts
// the ranks. Each function returns the exit code. It throws UsageError for wrong arguments, and Exit.
#include "command/arguments.h"

namespace tutti::bench {

/// The time of a sum over the ranks of one node, by size, dtype and number of ranks.
int run_all_reduce_benchmark(const Invocation& invocation);
/// The time until ranks are told of a failed rank, and the CPU time of heartbeats. Returns 1 if a rank was told
/// wrongly.
int run_coordinator_benchmark(const Invocation& invocation);
/// The overhead of ExportedModule for each operator of its graph.
int run_exported_benchmark(const Invocation& invocation);
/// The time until the other ranks report a failed rank. Returns 1 if a trial named a wrong rank or none.
int run_failures_benchmark(const Invocation& invocation);
/// The time to record an operation in the flight record.
int run_flight_record_benchmark(const Invocation& invocation);
/// Time, bytes and loss of Local SGD, compared with synchronous training.
int run_local_sgd_benchmark(const Invocation& invocation);
/// The table of Accelerate's guide on gradient synchronization with the guide's kind of model, BERT for pairs of
/// sentences. C++ trains an exported program; Python trains the original.
int run_nlp_benchmark(const Invocation& invocation);
/// The predictions of `tutti plan`, compared with measured steps.
int run_plan_check_benchmark(const Invocation& invocation);
/// The time and the resources of many ranks on one machine.
int run_scale_benchmark(const Invocation& invocation);
/// The time of a training step in one process, compared with LibTorch's own loop.
int run_step_benchmark(const Invocation& invocation);
/// The time of gradient synchronization under accumulation, by system and by annotation of the loop.
int run_sync_benchmark(const Invocation& invocation);

}  // namespace tutti::bench
