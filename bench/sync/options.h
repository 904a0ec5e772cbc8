#pragma once
// The options of `tutti bench sync`.
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct SyncOptions {
  // The ranks.
  int ranks = 2;  ///< of all nodes
  int nodes = 1;
  std::string rate = "1gbit";  ///< of the link between two nodes
  // The training.
  int batches = 29;
  int steps = 4;  ///< batches in an optimizer step
  int batch_size = 4;
  int width = 256;
  int layers = 6;
  int context = 64;
  int vocabulary = 4096;
  int repeats = 7;
  bool peers = true;  ///< false: only tutti and the loop without communication
  // The output.
  std::string json;     ///< file for the rows; empty: none
  std::string python;   ///< Python with PyTorch and Accelerate; empty: none
  std::string results;  ///< file in which rank 0 writes its rows for the parent process; empty: it reports
};

/// Returns nullopt after --help. `under_launcher`: this process is a rank, so options about ranks and nodes are
/// refused. Throws UsageError.
std::optional<SyncOptions> parse_sync_options(const std::vector<std::string>& words, bool under_launcher);

/// Throws UsageError if ranks, nodes and rate contradict each other.
void check_place(const SyncOptions& options, bool rate_given);

/// Returns the arguments with which a rank or the Python script does the same work `repeats` times.
std::vector<std::string> work_arguments(const SyncOptions& options, int repeats);

}  // namespace tutti::bench
