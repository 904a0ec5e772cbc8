#pragma once
// The processor's hint for spin loops.

namespace tutti::comm {

/// Call it once per iteration of a spin loop. It does nothing on processors without such an instruction.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tutti::comm
