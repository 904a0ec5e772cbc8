#pragma once
// Which processes live on one node, where no launcher says it.
#include <string>
#include <vector>

namespace tutti::comm {

/// Equal for processes that share a machine's memory and network: the machine's name and its boot, the namespaces of
/// processes (memory is found through /proc) and of the network (the loopback address means another host in each).
std::string this_node_id();

/// For each rank the number of its node; nodes are counted in the order of their first ranks. `names`: of
/// this_node_id().
std::vector<int> number_nodes(const std::vector<std::string>& names);

}  // namespace tutti::comm
