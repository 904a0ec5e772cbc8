#include "core/pending_limit.h"

namespace tutti {

PendingLimit::Time::duration PendingLimit::timeout_for(std::size_t waiting) {
  return has_capacity(waiting) ? Time::duration(pending_timeout) : Time::duration(pending_timeout_under_load);
}

}  // namespace tutti
