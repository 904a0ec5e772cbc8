#pragma once
// Both together: shared memory inside a node, messages between nodes, where a slice of every sum travels once for a
// node and not once for a rank.
//
// Mikami et al., "Massively Distributed SGD" (1811.05233): reduce inside, all-reduce across with all local ranks at
// once, hand out inside.
#include <chrono>
#include <memory>
#include <string>

#include "comm/engine/engine.h"

namespace tutti::comm {

/// Whether every node has the same number of neighbouring ranks, and there are several of both.
bool fits_hierarchy(const NodeLayout& layout);
/// Whether sums that are made node by node have the bits of those that are made at once (see left_of_tree).
bool hierarchy_keeps_bits(const NodeLayout& layout);

/// Every rank of `messages`, whose layout fits, must call it. Where memory cannot be shared on some node, returns
/// `messages` on all of them; `reason` then says why. Throws TransferError. Like any engine for `messages`, it uses
/// `name` for what it connects, which must be new. `for_groups` picks the engines of groups (Engine::connect_again).
std::shared_ptr<Engine> make_hierarchical_engine(const std::shared_ptr<Engine>& messages, ChooseEngine for_groups,
                                                 const std::string& name, std::chrono::milliseconds timeout,
                                                 std::string& reason);

}  // namespace tutti::comm
