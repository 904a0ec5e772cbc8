#pragma once
// Delays the exit of the process. Threads of this library may still run when main() returns, if the program did not
// wait for their operations.
#include <memory>

namespace tutti::comm {

/// While a guard exists, the process does not exit: a thread that uses LibTorch while its static objects are destroyed
/// crashes. The delay is at most 30 s, because an operation in flight may wait for ranks that never enter it.
class ExitGuard {
 public:
  ExitGuard();

 private:
  struct Release {
    void operator()(void*) const;
  };
  std::unique_ptr<void, Release> guard_;
};

}  // namespace tutti::comm
