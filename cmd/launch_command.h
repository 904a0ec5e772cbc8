#pragma once
// `tutti launch`.
#include <string>
#include <vector>

namespace tutti {

/// The words behind `tutti launch`, cut where the program begins. Options as torchrun, Accelerate and mpirun spell them
/// (--nproc_per_node, --num_machines, -np) have become tutti's.
struct LaunchWords {
  std::vector<std::string> options;
  std::vector<std::string> command;
};

/// The program begins behind the first `--`, or with the first word that is neither an option nor an option's value.
LaunchWords split_launch_words(const std::vector<std::string>& words);

/// Returns the exit code for the whole program. Throws UsageError.
int run_launch_command(const std::vector<std::string>& words);

}  // namespace tutti
