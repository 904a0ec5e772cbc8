#include "comm/select_backend.h"

#include "comm/hierarchical/backend.h"
#include "comm/shm/backend.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

// The backend of a subgroup is selected as with "auto".
std::shared_ptr<Backend> select_for_group(std::shared_ptr<Backend> messages, const std::string& name,
                                          std::chrono::milliseconds timeout) {
  return select_backend(std::move(messages), "auto", name, timeout);
}

std::shared_ptr<Backend> find_backend(std::shared_ptr<Backend> messages, const std::string& requested,
                                      const std::string& name, std::chrono::milliseconds timeout) {
  if (messages->size() == 1 || (requested != "auto" && requested != "shared_memory" && requested != "hierarchical")) {
    return messages;
  }
  const Topology& topology = messages->topology();
  std::string reason;
  bool refused = false;  // the topology fits, but a machine refused the shared memory
  if (requested == "hierarchical" || (requested == "auto" && hierarchy_preserves_bits(topology))) {
    reason = topology.num_nodes == 1 ? "all ranks are on one node"
                                     : "every node must hold the same number of consecutive ranks, at least 2";
    if (fits_hierarchy(topology)) {
      reason.clear();
      auto backend = make_hierarchical_backend(messages, select_for_group, name, timeout, reason);
      if (backend != messages) return backend;
      refused = true;
    }
  } else if (topology.num_nodes == 1) {
    if (auto backend = make_shm_backend(messages, select_for_group, timeout, reason)) return backend;
    refused = true;
  } else {
    reason = "the ranks are on several nodes";
    // With one rank on each node no ranks can share memory, so there is nothing to log.
    if (requested == "auto" && topology.num_nodes == messages->size()) return messages;
  }
  if (requested != "auto") throw UsageError("The backend " + requested + " cannot be used: " + reason + ".");
  const std::string line =
      "gradients are sent over " + messages->traits().name + ", not through shared memory: " + reason;
  const Logger logger(messages->rank());
  if (!refused) {
    logger.info(line);
  } else if (messages->rank() == 0) {
    logger.warning(line);
  }
  return messages;
}

}  // namespace

std::shared_ptr<Backend> select_backend(std::shared_ptr<Backend> messages, const std::string& requested,
                                        const std::string& name, std::chrono::milliseconds timeout) {
  auto backend = find_backend(std::move(messages), requested, name, timeout);
  backend->connect(timeout);
  return backend;
}

}  // namespace tutti::comm
