#pragma once
// The input of a prediction.
#include <string>
#include <vector>

namespace tutti::plan {

/// A node, as its ranks measure it.
struct Machine {
  /// Number of ranks that compute at the same time; less than 1 if nodes share a machine.
  double cores = 1;
  /// Duration of a barrier in the node.
  double node_barrier_us = 0;
  /// Speed of one core in a sum in shared memory, which reads all contributions and writes the sum to all ranks.
  double sum_gb_per_s = 1;
  /// Duration of a message without the link, and the time for which it occupies a core, at both ends together.
  double message_us = 0;
  double message_cpu_us = 0;
  /// Speed at which a core sends and receives at the same time, in each direction.
  double message_gb_per_s = 1;
};

/// The machine of a plan without a measurement: round numbers of the size that `tutti plan --measure` finds. For
/// message_cpu_us, 20 runs on 2 cores of AMD EPYC found 7 to 17.
inline constexpr Machine assumed_machine{.cores = 1,
                                         .node_barrier_us = 10,
                                         .sum_gb_per_s = 8,
                                         .message_us = 100,
                                         .message_cpu_us = 10,
                                         .message_gb_per_s = 1};

/// The link from each node to the others. A node sends and receives at the same time.
struct Link {
  std::string name{};
  double latency_us = 0;
  double gbit = 1;
};

/// Gradients that are sent together.
struct Bucket {
  double bytes = 0;
  double ready = 1;  ///< fraction of the backward pass after which they are complete
};

/// The work of a rank in a step, measured while all cores of the machine do the same.
struct Work {
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  int micro_batches = 1;
  std::vector<Bucket> buckets{};  ///< in the order in which they are sent
};

struct Layout {
  int nodes = 1;
  int ranks_per_node = 1;

  int ranks() const { return nodes * ranks_per_node; }
};

/// The backward passes that synchronize gradients.
enum class Exchange { once_a_step, in_every_pass };

}  // namespace tutti::plan
