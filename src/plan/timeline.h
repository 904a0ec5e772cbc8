#pragma once
// Simulates a backward pass that synchronizes gradients. All ranks do the same at the same time, so one rank is
// simulated. It has three threads: one computes, one adds gradients, one sends messages. They share the rank's part of
// its node's cores.
#include <vector>

namespace tutti::plan {

/// Occupies the link for `link_ms` and a core for `cpu_ms`, whichever is longer, after the messages sent before it.
/// Arrives `latency_ms` later.
struct Message {
  double link_ms = 0;
  double cpu_ms = 0;
  double latency_ms = 0;
};

/// A part of the backward pass. Its end sends the messages whose numbers are in `sends`.
struct Computing {
  double cpu_ms = 0;
  int completes = -1;  ///< the bucket that is complete at its end
  std::vector<int> sends{};
};

/// A task of the adding thread. It waits for `bucket` and `message` unless they are -1, then for `pause_ms` for the
/// ranks of its node, and then uses a core for `cpu_ms`.
struct Adding {
  int bucket = -1;
  int message = -1;
  double pause_ms = 0;
  double cpu_ms = 0;
  int sends = -1;
};

struct Script {
  std::vector<Computing> computing{};
  std::vector<Adding> adding{};
  std::vector<Message> messages{};
};

/// Returns the milliseconds until `script` is done, if each rank has `cores`. Throws Error for a script with a wait
/// that never ends.
double play(const Script& script, double cores);

}  // namespace tutti::plan
