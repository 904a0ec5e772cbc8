#pragma once
// The options of `tutti bench sync`, whose model and batches other benchmarks use as well.
#include <string>
#include <vector>

#include "command/arguments.h"
#include "sync/selection.h"

namespace tutti::bench {

struct SyncOptions : CommonOptions, Place {
  int batches = 29;
  int steps = 4;  ///< batches in an optimizer step
  int batch_size = 4;
  int width = 256;
  int layers = 6;
  int context = 64;
  int vocabulary = 4096;
  int repeats = 7;
  bool peers = true;   ///< false: only tutti and the loop without communication
  std::string python;  ///< Python with PyTorch and Accelerate; empty: none
  Selection selection{};
};

/// Adds the options of the model, the batches and the repeats.
void add_work_options(ArgumentParser& parser, SyncOptions& options);

/// Returns the arguments with which a Python script does the same work `repeats` times.
std::vector<std::string> work_arguments(const SyncOptions& options, int repeats);

/// Describes the model: "GPT of width 256, 6 layers, context 64, vocabulary 4096".
std::string describe_gpt(const SyncOptions& options);

}  // namespace tutti::bench
