#pragma once
#include <thread>

#include "core/file_descriptor.h"

namespace tutti {

/// Sends SIGTERM to this process when its standard input ends, while the object lives: a launcher on another host
/// learns so that its parent has exited. Make it where SIGTERM is blocked.
class StdinWatch {
 public:
  StdinWatch();
  ~StdinWatch();
  StdinWatch(const StdinWatch&) = delete;
  StdinWatch& operator=(const StdinWatch&) = delete;

 private:
  FileDescriptor stop_;
  std::thread thread_;
};

}  // namespace tutti
