#pragma once
// Log lines of threads that others wait for.
#include <string_view>

#include "tutti/core/logging.h"

namespace tutti {

/// logger.warning(message), unless it would wait for the reader of standard error: then the line is dropped.
void warn_without_waiting(const Logger& logger, std::string_view message);

}  // namespace tutti
