#pragma once
// Ranks that share what LibTorch sets up when it is loaded, some 60 MiB and half a second of CPU for a process of its
// own.
#include <functional>

namespace tutti::bench {

/// Runs `work(0)` to `work(count - 1)`, each in a process forked from this one, which must have one thread and must not
/// have computed anything yet. A process ends with what `work` returns, and without LibTorch's end. Returns the exit
/// code of the first one that failed (128 + signal if a signal ended it), after which the others are ended, or 0.
/// Throws std::runtime_error where there are other threads, and std::system_error.
int run_forked(int count, const std::function<int(int)>& work);

}  // namespace tutti::bench
