#pragma once
// What the ranks do in a backward pass that exchanges gradients: src/sync/gradient_sync.h, and the sums of src/comm/
// below it.
#include "plan/description.h"
#include "plan/timeline.h"

namespace tutti::plan {

/// What of an exchange takes time; the rest takes none.
struct Charged {
  bool node = true;     ///< sums inside nodes
  bool between = true;  ///< sums between nodes
  bool headers = true;  ///< what ranks tell one another before and after
};

Script script_of(const Machine& machine, const Link& link, const Work& work, const Layout& layout,
                 const Charged& charged = {});

}  // namespace tutti::plan
