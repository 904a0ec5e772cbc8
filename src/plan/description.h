#pragma once
// What the time of a step is predicted from.
#include <string>
#include <vector>

namespace tutti::plan {

/// A node, as the ranks on it find it.
struct Machine {
  /// Ranks that compute at the same time; less than 1 where nodes share a machine.
  double cores = 1;
  /// Until a rank knows that the others of its node have come.
  double node_barrier_us = 0;
  /// How much of a sum in shared memory a core makes: read from all versions, written to all.
  double sum_gb_per_s = 1;
  /// What a message takes besides the link, and how much a core is busy with it, at both ends together.
  double message_us = 0;
  double message_cpu_us = 0;
  /// What a core sends and receives, as much of each.
  double message_gb_per_s = 1;
};

/// What every node has to the others. A node sends and receives at the same time.
struct Link {
  std::string name{};
  double latency_us = 0;
  double gbit = 1;
};

/// Gradients that are sent together.
struct Bucket {
  double bytes = 0;
  double ready = 1;  ///< the part of the backward pass that has run when they are complete
};

/// What a rank does in a step, while as many ranks as there are cores do the same.
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

/// Which backward passes exchange gradients.
enum class Exchange { once_a_step, in_every_pass };

}  // namespace tutti::plan
