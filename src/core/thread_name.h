#pragma once
#include <pthread.h>

namespace tutti {

/// What `top -H` and debuggers call the calling thread: at most 15 letters.
inline void name_this_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
}

}  // namespace tutti
