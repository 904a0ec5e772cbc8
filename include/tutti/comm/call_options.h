#pragma once
// The options of one call on a Communicator.
#include <chrono>
#include <optional>
#include <string>

#include "tutti/detail/core/call_site.h"

namespace tutti {

/// Options of one call.
struct CallOptions {
  /// The timeout of the call. Unset: CommunicatorOptions::timeout.
  std::optional<std::chrono::milliseconds> timeout{};
  /// A name for error messages, for example "validation loss". It is part of the call signature.
  std::string name{};
  /// The file and line of the call. The compiler fills it in; messages and `tutti inspect` show it.
  CallSite where = CallSite::here();
};

}  // namespace tutti
