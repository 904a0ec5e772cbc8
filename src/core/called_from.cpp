#include "tutti/detail/core/called_from.h"

namespace tutti {

namespace {
thread_local CallSite user_of_this_thread;
}

CalledFrom::CalledFrom(const CallSite& where) : before_(user_of_this_thread) {
  if (where.known() && (where.line > 0 || !before_.known())) user_of_this_thread = where;
}

CalledFrom::~CalledFrom() {
  user_of_this_thread = before_;
}

CallSite CalledFrom::now() {
  return user_of_this_thread;
}

}  // namespace tutti
