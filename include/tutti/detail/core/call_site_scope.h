#pragma once
// For whom this thread is at work: the place in the user's program whose call led to what tutti calls by itself.
#include "tutti/core/call_site.h"

namespace tutti {

/// While one lives, what its thread calls was called from there. Public methods that communicate open one. The
/// innermost that is known counts; one without a line only where none is known.
///
/// It is kept by thread, as the stack is: between save_state() and the collectives in it stand files, state and
/// checkpoint writers, which would all have to hand on what none of them uses.
class CallSiteScope {
 public:
  /// `where` may be unknown: then what was known before counts.
  explicit CallSiteScope(const CallSite& where);
  ~CallSiteScope();
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;

  /// Not known where none is open.
  static CallSite current();

 private:
  CallSite previous_;
};

}  // namespace tutti
