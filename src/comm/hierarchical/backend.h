#pragma once
// The backend for several nodes: shared memory inside a node, point-to-point messages between nodes. Each shard is sent
// between nodes once per node, not once per rank.
//
// Mikami et al., "Massively Distributed SGD" (1811.05233): reduce-scatter inside a node, all-reduce between nodes by
// all local ranks in parallel, all-gather inside a node.
#include <chrono>
#include <memory>
#include <string>

#include "comm/backend/backend.h"

namespace tutti::comm {

/// True if there are several nodes, and every node has the same number of consecutive ranks, two or more.
bool fits_hierarchy(const Topology& topology);
/// True if sums that are computed node by node have the same bits as flat sums (see split_point).
bool hierarchy_preserves_bits(const Topology& topology);

/// Creates the hierarchical backend for the ranks of `p2p_backend`, whose topology must fit. Every rank must call it.
/// If some node cannot share memory, it returns `p2p_backend` on all ranks and sets `reason`. `name` must be unused: it
/// names the connections. `select_for_group` selects the backends of groups (Backend::split). Throws TransferError.
std::shared_ptr<Backend> make_hierarchical_backend(const std::shared_ptr<Backend>& p2p_backend,
                                                   SelectBackend select_for_group, const std::string& name,
                                                   std::chrono::milliseconds timeout, std::string& reason);

}  // namespace tutti::comm
