#pragma once
// The time of an optimizer step, and what it is made of.
#include "plan/description.h"

namespace tutti::plan {

/// Milliseconds. All but hidden_ms add up to the step.
struct Step {
  double computing_ms = 0;  ///< forward and backward passes, as long as they take without an exchange
  double node_ms = 0;       ///< longer by the sums inside nodes
  double hidden_ms = 0;     ///< what the sums between nodes take while the backward pass goes on: not in the total
  double unhidden_ms = 0;   ///< longer by the sums between nodes
  double headers_ms = 0;    ///< longer by what ranks tell one another before and after
  double optimizer_ms = 0;

  double total_ms() const { return computing_ms + node_ms + unhidden_ms + headers_ms + optimizer_ms; }
  /// Of the time of a step without an exchange, 1 where it costs nothing.
  double efficiency() const { return (computing_ms + optimizer_ms) / total_ms(); }
};

/// Throws UsageError for a description that is none: nothing to compute with, or to send with.
Step predict(const Machine& machine, const Link& link, const Work& work, const Layout& layout, Exchange exchange);

}  // namespace tutti::plan
