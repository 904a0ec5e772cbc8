#include "tutti/detail/core/call_site_scope.h"

namespace tutti {

namespace {
thread_local CallSite call_site_of_thread;
}

CallSiteScope::CallSiteScope(const CallSite& where) : previous_(call_site_of_thread) {
  if (where.known() && (where.line > 0 || !previous_.known())) call_site_of_thread = where;
}

CallSiteScope::~CallSiteScope() {
  call_site_of_thread = previous_;
}

CallSite CallSiteScope::current() {
  return call_site_of_thread;
}

}  // namespace tutti
