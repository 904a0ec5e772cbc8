#include "launch/master_socket.h"

#include <cerrno>
#include <system_error>

#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// Runs `take` and adds the port to its errors.
template <typename Take>
BoundSocket taken(std::optional<std::uint16_t> port, const Take& take) {
  try {
    return take();
  } catch (const std::system_error& error) {
    const std::string name = port ? "port " + std::to_string(*port) : "a free port";
    const int code = error.code().value();
    if (code == EADDRINUSE && port) throw UsageError(name + " is in use: choose another --master-port");
    if (code == EACCES) throw UsageError(name + " may not be used by this user: choose a --master-port above 1023");
    throw std::system_error(error.code(), "cannot listen on " + name);
  }
}

}  // namespace

BoundSocket listen_for_ranks(const std::string& address, std::optional<std::uint16_t> port) {
  return taken(port, [&] {
    auto socket = bind_to_host(address, port, read_port_range(&process_variable));
    start_listening(socket);
    return socket;
  });
}

BoundSocket reserve_port(std::optional<std::uint16_t> port) {
  return taken(port, [&] {
    if (port) start_listening(bind_everywhere(port));
    return bind_everywhere(port, read_port_range(&process_variable));
  });
}

}  // namespace tutti
