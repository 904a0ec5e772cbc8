#pragma once
// The line of the user's program whose public call led to the internal calls of this thread.
#include "tutti/detail/core/call_site.h"

namespace tutti {

/// While a scope exists, operations of its thread report its line as their call site. Public methods that communicate
/// open one. Of nested scopes, the innermost with a known line counts, else the innermost without a line.
///
/// The call site is thread-local. As an argument it would pass through many functions that do not use it, for example
/// from save_state() through state and checkpoint writers to the collectives.
class CallSiteScope {
 public:
  /// `where` may be unknown; then the enclosing scope counts.
  explicit CallSiteScope(const CallSite& where);
  ~CallSiteScope();
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;

  /// The call site of this thread; unknown if no scope is open.
  static CallSite current();

 private:
  CallSite previous_;
};

}  // namespace tutti
