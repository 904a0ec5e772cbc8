#pragma once
// One rank goes first, the others wait: who prepares files that all read.
#include <chrono>
#include <string>

#include "tutti/comm/communicator.h"

namespace tutti {

/// While it lives on a rank that goes first, the others wait in its constructor. Every rank must open it, and open no
/// collective inside. Where the scope of a rank that goes first ends with an exception, the others throw PeerError
/// that names it. Throws TimeoutError, naming who did not come, at the communicator's deadline or the call's own. Not
/// movable.
class [[nodiscard]] FirstProcessScope {
 public:
  /// `first`: whether this rank goes first. `what` stands in errors. Accelerator::main_process_first() makes one.
  FirstProcessScope(const Communicator& communicator, bool first, const std::string& what,
                    const CallOptions& call = {});
  /// Waits for the others to come, and throws as communicators do; not while an exception unwinds. Keep it in a block:
  /// inside std::optional or std::unique_ptr an exception of it ends the process.
  ~FirstProcessScope() noexcept(false);
  FirstProcessScope(const FirstProcessScope&) = delete;
  FirstProcessScope& operator=(const FirstProcessScope&) = delete;

 private:
  Communicator communicator_;
  bool first_;
  std::string name_;
  CallOptions call_;
  int exceptions_;
};

}  // namespace tutti
