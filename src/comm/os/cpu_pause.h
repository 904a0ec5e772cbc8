#pragma once
// For loops that wait for another core.

namespace tutti::comm {

/// Tells the core that this is a loop that waits.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tutti::comm
