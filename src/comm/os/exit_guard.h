#pragma once
// Threads of this library may still work when main() returns: on what nobody waited for.

namespace tutti::comm {

/// While one is there the process does not end: what a thread does while the static objects of LibTorch are being
/// destroyed ends in a crash. Not for longer than half a minute, since a rank that leaves in the middle may wait for
/// others that never come.
class ExitGuard {
 public:
  ExitGuard();
  ~ExitGuard();
  ExitGuard(ExitGuard&& other) noexcept : active_(other.active_) { other.active_ = false; }
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
  ExitGuard& operator=(ExitGuard&&) = delete;

 private:
  bool active_ = true;
};

}  // namespace tutti::comm
