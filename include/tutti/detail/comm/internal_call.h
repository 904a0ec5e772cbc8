#pragma once
// Options of collectives that the library calls itself.
#include <string>
#include <utility>

#include "tutti/comm/call_options.h"

namespace tutti::comm {

/// Options of a call named `name`. Its call site is that of the user's call (CallSiteScope), not a line of the library.
inline CallOptions internal_call(std::string name = {}) {
  return {.name = std::move(name), .where = {}};
}

}  // namespace tutti::comm
