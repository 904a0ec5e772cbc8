#include "comm/hierarchical/levels.h"

namespace tutti::comm {

void Levels::reduce_oldest() {
  SumAcross& oldest = *between.front();
  across_ranks.run([&] { oldest.pending->reduce(oldest.scale); });
  oldest.reduced = true;
  between.pop_front();
}

}  // namespace tutti::comm
