#pragma once
// Collectives that tutti makes by itself.
#include <string>
#include <utility>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// Options of one called `name`. Its place is not in this library: it is that of the user's call (CallSiteScope).
inline CallOptions internal_call(std::string name = {}) {
  return {.name = std::move(name), .where = {}};
}

}  // namespace tutti::comm
