#pragma once
// Both together: shared memory inside a node, messages between nodes, where a slice of every sum travels once for a
// node and not once for a rank.
//
// Mikami et al., "Massively Distributed SGD" (1811.05233): reduce inside, all-reduce across with all local ranks at
// once, hand out inside.
#include <chrono>
#include <memory>
#include <string>

#include "comm/backend/backend.h"

namespace tutti::comm {

/// Whether every node has the same number of neighbouring ranks, and there are several of both.
bool fits_hierarchy(const Topology& topology);
/// Whether sums that are made node by node have the bits of those that are made at once (see split_point).
bool hierarchy_preserves_bits(const Topology& topology);

/// Every rank of `p2p_backend`, whose topology fits, must call it. Where memory cannot be shared on some node, returns
/// `p2p_backend` on all of them; `reason` then says why. Throws TransferError. Like any backend for `p2p_backend`, it
/// uses `name` for what it connects, which must be new. `select_for_group` picks the backends of groups
/// (Backend::split).
std::shared_ptr<Backend> make_hierarchical_backend(const std::shared_ptr<Backend>& p2p_backend,
                                                   SelectBackend select_for_group, const std::string& name,
                                                   std::chrono::milliseconds timeout, std::string& reason);

}  // namespace tutti::comm
