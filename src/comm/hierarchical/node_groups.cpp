#include "comm/hierarchical/node_groups.h"

namespace tutti::comm {

void NodeGroups::reduce_oldest() {
  InterNodeSum& oldest = *pending_sums.front();
  inter_node_subgroup.run([&] { oldest.pending->finish_reduce_scatter(oldest.scale); });
  oldest.reduced = true;
  pending_sums.pop_front();
}

}  // namespace tutti::comm
