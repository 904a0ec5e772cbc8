#include "comm/choose_engine.h"

#include "comm/hierarchical/engine.h"
#include "comm/shared/engine.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

// A group of ranks of one of these engines gets the best that suits it.
std::shared_ptr<Engine> choose_for_group(std::shared_ptr<Engine> messages, const std::string& name,
                                         std::chrono::milliseconds timeout) {
  return choose_engine(std::move(messages), "auto", name, timeout);
}

std::string why_no_hierarchy(const NodeLayout& layout) {
  if (layout.num_nodes == 1) return "all ranks live on one node";
  return "it needs nodes that hold equal numbers of neighbouring ranks, 2 or more";
}

std::shared_ptr<Engine> pick_engine(std::shared_ptr<Engine> messages, const std::string& wanted,
                                    const std::string& name, std::chrono::milliseconds timeout) {
  if (messages->size() == 1 || (wanted != "auto" && wanted != "shared_memory" && wanted != "hierarchical")) {
    return messages;
  }
  const NodeLayout& layout = messages->layout();
  std::string reason;
  bool refused = false;  // by a machine that could do it
  if (wanted == "hierarchical" || (wanted == "auto" && hierarchy_keeps_bits(layout))) {
    reason = why_no_hierarchy(layout);
    if (fits_hierarchy(layout)) {
      reason.clear();
      auto engine = make_hierarchical_engine(messages, choose_for_group, name, timeout, reason);
      if (engine != messages) return engine;
      refused = true;
    }
  } else if (layout.num_nodes == 1) {
    if (auto engine = make_shared_memory_engine(messages, choose_for_group, timeout, reason)) return engine;
    refused = true;
  } else {
    reason = "the ranks live on several nodes";
    // One rank a node: there is nobody to share memory with.
    if (wanted == "auto" && layout.num_nodes == messages->size()) return messages;
  }
  if (wanted != "auto") throw UsageError("The engine " + wanted + " cannot be used: " + reason + ".");
  const std::string line = "gradients go over " + messages->name() + ", not through shared memory: " + reason;
  const Logger logger(messages->rank());
  if (!refused) {
    logger.info(line);
  } else if (messages->rank() == 0) {
    logger.warning(line);
  }
  return messages;
}

}  // namespace

std::shared_ptr<Engine> choose_engine(std::shared_ptr<Engine> messages, const std::string& wanted,
                                      const std::string& name, std::chrono::milliseconds timeout) {
  auto engine = pick_engine(std::move(messages), wanted, name, timeout);
  engine->connect();
  return engine;
}

}  // namespace tutti::comm
