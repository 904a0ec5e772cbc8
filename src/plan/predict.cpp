#include "plan/predict.h"

#include <algorithm>
#include <string>

#include "plan/script.h"
#include "tutti/core/error.h"

namespace tutti::plan {
namespace {

void require(bool fits, const std::string& what) {
  if (!fits) throw UsageError("cannot predict a step: " + what);
}

void check(const Machine& machine, const Link& link, const Work& work, const Layout& layout) {
  require(machine.cores > 0 && machine.sum_gb_per_s > 0 && machine.message_gb_per_s > 0,
          "a node must have cores and speeds above 0");
  require(link.gbit > 0 && link.latency_us >= 0, "the link " + link.name + " must have a rate above 0");
  require(work.micro_batches > 0, "a step must have at least one micro-batch");
  require(layout.nodes > 0 && layout.ranks_per_node > 0, "nodes and ranks_per_node must be at least 1");
}

Work with_late_gradients(Work work) {
  for (Bucket& bucket : work.buckets) bucket.ready = 1;
  return work;
}

}  // namespace

Step predict(const Machine& machine, const Link& link, const Work& work, const Layout& layout, Exchange exchange) {
  check(machine, link, work, layout);
  const double cores = machine.cores / layout.ranks_per_node;
  const double pace = std::min(1.0, cores);
  const auto pass = [&](const Work& what, const Charged& charged) {
    return play(script_of(machine, link, what, layout, charged), cores);
  };
  const double alone = pass(work, {.node = false, .between = false, .headers = false});
  // A timeline with more work may end sooner, if its threads happen to overlap better. The prediction does not count
  // such a gain.
  const double in_node = std::max(alone, pass(work, {.node = true, .between = false, .headers = false}));
  const double over_nodes = std::max(in_node, pass(work, {.node = true, .between = true, .headers = false}));
  const double whole = std::max(over_nodes, pass(work, {}));

  const Work late = with_late_gradients(work);
  const double between = pass(late, {.node = true, .between = true, .headers = false}) -
                         pass(late, {.node = true, .between = false, .headers = false});
  const int exchanges = exchange == Exchange::in_every_pass ? work.micro_batches : 1;
  return {.computing_ms = work.micro_batches * (work.forward_ms + work.backward_ms) / pace,
          .node_ms = exchanges * (in_node - alone),
          .hidden_ms = exchanges * std::max(0.0, between - (over_nodes - in_node)),
          .unhidden_ms = exchanges * (over_nodes - in_node),
          .headers_ms = exchanges * (whole - over_nodes),
          .optimizer_ms = work.optimizer_ms / pace};
}

}  // namespace tutti::plan
