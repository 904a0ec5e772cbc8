#include "core/log_without_waiting.h"

#include <poll.h>
#include <unistd.h>

namespace tutti {

void warn_without_waiting(const Logger& logger, std::string_view message) {
  pollfd error_output{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&error_output, 1, 0) == 1 && (error_output.revents & POLLOUT) != 0) logger.warning(message);
}

}  // namespace tutti
