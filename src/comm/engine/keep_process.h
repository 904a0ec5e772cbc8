#pragma once
// Threads of this library may still work when main() returns: on what nobody waited for.

namespace tutti::comm {

/// While one is there the process does not end: what a thread does while the static objects of LibTorch are being
/// destroyed ends in a crash. Not for longer than half a minute, since a rank that leaves in the middle may wait for
/// others that never come.
class KeepProcess {
 public:
  KeepProcess();
  ~KeepProcess();
  KeepProcess(KeepProcess&& other) noexcept : keeps_(other.keeps_) { other.keeps_ = false; }
  KeepProcess(const KeepProcess&) = delete;
  KeepProcess& operator=(const KeepProcess&) = delete;
  KeepProcess& operator=(KeepProcess&&) = delete;

 private:
  bool keeps_ = true;
};

}  // namespace tutti::comm
