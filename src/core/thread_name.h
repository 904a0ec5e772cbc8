#pragma once
#include <pthread.h>

namespace tutti {

/// Sets the name of the calling thread for `top -H` and debuggers: at most 15 characters.
inline void name_this_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
}

}  // namespace tutti
