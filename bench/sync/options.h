#pragma once
// What `tutti bench sync` was asked for.
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

struct SyncOptions {
  // Where it runs.
  int ranks = 2;  ///< on all nodes together
  int nodes = 1;
  std::string rate = "1gbit";  ///< of the link between two nodes
  // What is trained, and how.
  int batches = 29;
  int steps = 4;  ///< batches in an optimizer step
  int batch_size = 4;
  int width = 256;
  int layers = 6;
  int context = 64;
  int vocabulary = 4096;
  int repeats = 7;
  bool peers = true;  ///< false: tutti and no communication only
  // What comes of it.
  std::string json;     ///< file for the rows; none when empty
  std::string python;   ///< interpreter that has PyTorch and Accelerate; none when empty
  std::string results;  ///< where rank 0 leaves its rows for the process that started it; empty: it reports itself
};

/// nullopt when help was asked for (and printed). `under_launcher`: this process is a rank already, so options about
/// ranks and nodes are refused. Throws UsageError.
std::optional<SyncOptions> parse_sync_options(const std::vector<std::string>& words, bool under_launcher);

/// Throws UsageError where ranks, nodes and rate contradict one another.
void check_place(const SyncOptions& options, bool rate_given);

/// The options that a rank, or the Python script, needs to do the same work `repeats` times.
std::vector<std::string> work_arguments(const SyncOptions& options, int repeats);

}  // namespace tutti::bench
