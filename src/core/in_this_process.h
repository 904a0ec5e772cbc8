#pragma once
// Objects in a forked child. A child has copies of all objects, but no threads, and does not inherit shared memory.
// Static objects are destroyed when it calls exit(): their destructors must neither join threads nor access that
// memory.
#include <unistd.h>

#include <memory>
#include <utility>

namespace tutti {

/// True in the process that constructed it, false in a forked child.
class InThisProcess {
 public:
  explicit operator bool() const { return ::getpid() == process_; }

 private:
  pid_t process_ = ::getpid();
};

/// As std::make_shared, but a forked child does not destroy the object.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_shared_in_this_process(Arguments&&... arguments) {
  const auto destroy = [in_this_process = InThisProcess()](T* object) {
    if (in_this_process) delete object;
  };
  return {std::make_unique<T>(std::forward<Arguments>(arguments)...).release(), destroy};
}

}  // namespace tutti
