#pragma once
// Sums of device memory with a gradient codec between nodes.
//
// A c10d backend does not know gradient codecs. So a sum with a codec has these steps: the ranks of a node
// reduce-scatter on their devices, the ranks with the same local rank of all nodes sum their shards through host
// memory, where the host's backend encodes them, and the ranks of the node all-gather on their devices. Each rank sends
// its shard to other nodes, so for n bytes and L ranks on each node n / L bytes are staged and encoded.
//
// The two collectives of a node have c10d groups of their own: a rank may reach the all-gather of one bucket before or
// after the reduce-scatter of a later one.
#include <memory>
#include <string>

#include "comm/backend/backend.h"

namespace tutti::comm {

/// Adds sums with a codec to `device_backend` (see make_device_backend). All other operations are those of
/// `device_backend`. Returns `device_backend` if the ranks are on one node, or if the nodes do not have equal numbers
/// of consecutive ranks. `name` is unique in the job.
std::shared_ptr<Backend> add_encoded_sums(const std::shared_ptr<Backend>& device_backend, const std::string& name);

}  // namespace tutti::comm
