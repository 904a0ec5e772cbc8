#pragma once
// A backward pass that exchanges gradients, played as a list of events. All ranks do the same at the same time, so that
// one is enough. It has three threads: one computes, one adds gradients, one moves messages. They share what its node
// has in cores for each rank.
#include <vector>

namespace tutti::plan {

/// It occupies the link for `link_ms` and a core for `cpu_ms`, whichever is longer, behind the messages sent before it,
/// and is there `latency_ms` later.
struct Message {
  double link_ms = 0;
  double cpu_ms = 0;
  double latency_ms = 0;
};

/// A part of the backward pass. What stands in `sends` (numbers of messages) leaves when it ends.
struct Computing {
  double cpu_ms = 0;
  int completes = -1;  ///< the bucket whose gradients are then there
  std::vector<int> sends{};
};

/// What the adding thread does next. It waits for a bucket and for a message, where one is named; then `pause_ms` for
/// ranks of its node; then it is busy.
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

/// Milliseconds until all of `script` is done, where each rank has `cores`. Throws Error for a script that waits for
/// something that never comes.
double play(const Script& script, double cores);

}  // namespace tutti::plan
