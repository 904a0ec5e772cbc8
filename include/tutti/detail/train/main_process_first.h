#pragma once
// A scope that one rank runs before the others, for example to prepare files that all ranks read.
#include <chrono>
#include <string>

#include "tutti/comm/communicator.h"

namespace tutti {

/// A first rank runs the scope's body at once. The other ranks wait in the constructor until every first rank has
/// closed its scope. Every rank must open the scope, and must not call collectives inside. If the scope of a first rank
/// ends with an exception, the other ranks throw PeerError with that rank. Throws TimeoutError with the ranks that did
/// not enter the scope, after the communicator's timeout or the call's own. Not movable.
class [[nodiscard]] FirstProcessScope {
 public:
  /// `first`: true on ranks that run first. `what`: the name of the scope in messages.
  /// Accelerator::main_process_first() calls it.
  FirstProcessScope(const Communicator& communicator, bool first, const std::string& what,
                    const CallOptions& call = {});
  /// On a first rank: waits until the other ranks have entered the scope, and throws as collectives do. Does neither
  /// while an exception unwinds. Use the scope as a local variable: in a std::optional or std::unique_ptr an exception
  /// of the destructor terminates the process.
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
