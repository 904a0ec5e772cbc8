#pragma once
// Ranks that share the memory of a loaded LibTorch. A separate process needs about 60 MiB and half a second of CPU time
// to load it.
#include <functional>

namespace tutti::bench {

/// Runs `work(0)` to `work(count - 1)`, each in a process forked from this one. This process must have one thread and
/// must not have computed with tensors. A child exits with the result of `work`, without LibTorch's destructors.
/// Returns 0, or the exit code of the first child that failed (128 + signal if a signal ended it); the other children
/// are then ended. Throws std::runtime_error if there are other threads, and std::system_error.
int run_forked(int count, const std::function<int(int)>& work);

}  // namespace tutti::bench
