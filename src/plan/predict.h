#pragma once
// The time of an optimizer step and its parts.
#include "plan/description.h"

namespace tutti::plan {

/// In milliseconds. The step is the sum of all parts except hidden_ms.
struct Step {
  double computing_ms = 0;  ///< forward and backward passes without synchronization
  double node_ms = 0;       ///< added by sums inside nodes
  double hidden_ms = 0;     ///< sums between nodes that overlap the backward pass; not in the total
  double unhidden_ms = 0;   ///< added by sums between nodes
  double headers_ms = 0;    ///< added by sync headers and trailers
  double optimizer_ms = 0;

  double total_ms() const { return computing_ms + node_ms + unhidden_ms + headers_ms + optimizer_ms; }
  /// The time of a step without synchronization, divided by the time with it.
  double efficiency() const { return (computing_ms + optimizer_ms) / total_ms(); }
};

/// Throws UsageError if cores, rates or counts are 0.
Step predict(const Machine& machine, const Link& link, const Work& work, const Layout& layout, Exchange exchange);

}  // namespace tutti::plan
