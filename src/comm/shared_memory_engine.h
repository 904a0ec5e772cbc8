#pragma once
// Gradients between the ranks of one node without messages: each rank sums its slice where it lies.
#include <memory>
#include <string>

#include "comm/engine.h"

namespace tutti::comm {

/// An engine that sums gradients (memory from allocate()) and exchanges headers through shared memory, and leaves
/// everything else to `messages`. All ranks of `messages` must be on one node; every rank must call it. Where memory
/// cannot be shared it returns `messages` itself, and `reason` says why.
std::shared_ptr<Engine> make_shared_memory_engine(std::shared_ptr<Engine> messages, std::chrono::milliseconds timeout,
                                                  std::string& reason);

}  // namespace tutti::comm
