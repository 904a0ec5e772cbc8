#pragma once
#include <pthread.h>

#include <array>

namespace tutti {

/// Sets the name of the calling thread for `top -H` and debuggers: at most 15 characters.
inline void name_this_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
}

/// Names the calling thread for the object's lifetime. Threads that it starts meanwhile keep the name.
class ScopedThreadName {
 public:
  explicit ScopedThreadName(const char* name) {
    ::pthread_getname_np(::pthread_self(), before_.data(), before_.size());
    name_this_thread(name);
  }
  ~ScopedThreadName() { name_this_thread(before_.data()); }
  ScopedThreadName(const ScopedThreadName&) = delete;
  ScopedThreadName& operator=(const ScopedThreadName&) = delete;

 private:
  std::array<char, 16> before_{};
};

}  // namespace tutti
