#pragma once
// The timeline of a backward pass that synchronizes gradients, as src/sync/gradient_sync.h and src/comm/ run it.
#include "plan/description.h"
#include "plan/timeline.h"

namespace tutti::plan {

/// The parts of a synchronization that take time; a part that is false takes none.
struct Charged {
  bool node = true;     ///< sums inside nodes
  bool between = true;  ///< sums between nodes
  bool headers = true;  ///< sync headers and trailers
};

Script script_of(const Machine& machine, const Link& link, const Work& work, const Layout& layout,
                 const Charged& charged = {});

}  // namespace tutti::plan
