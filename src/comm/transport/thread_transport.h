#pragma once
// Ranks as threads of one process: messages are copied from the sender's memory into the receiver's.
#include <memory>
#include <vector>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// One transport for each rank; they belong together.
std::vector<std::shared_ptr<Transport>> make_thread_transports(int size);

}  // namespace tutti::comm
