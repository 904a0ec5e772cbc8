#pragma once
#include <thread>

#include "core/file_descriptor.h"

namespace tutti {

/// While the object exists, sends SIGTERM to this process at the end of its standard input. So a launcher on another
/// host detects that its parent has exited. Construct it while SIGTERM is blocked.
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
