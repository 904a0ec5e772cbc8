#pragma once
// Checks that every backend must pass. Ranks as threads and as processes run them.
#include "tutti/comm/communicator.h"

namespace tutti::test {

void check_all_reduce(const Communicator& communicator);
void check_all_gather(const Communicator& communicator);
void check_reduce_scatter(const Communicator& communicator);
void check_all_to_all(const Communicator& communicator);
void check_rooted(const Communicator& communicator);
void check_messages(const Communicator& communicator);
void check_broadcast(const Communicator& communicator);
void check_objects(const Communicator& communicator);
void check_pending(const Communicator& communicator);
void check_layout_of_tensors(const Communicator& communicator);
void check_lazy_tensors(const Communicator& communicator);
void check_groups(const Communicator& communicator);
void check_mismatches(const Communicator& communicator);
void check_unwaited(const Communicator& communicator);

/// Runs all checks above.
void check_all(const Communicator& communicator);

}  // namespace tutti::test
