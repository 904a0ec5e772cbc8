#include "core/port_range.h"

#include <cerrno>
#include <string_view>
#include <system_error>

#include "core/variables.h"
#include "tutti/core/error.h"

namespace tutti {

PortRange read_port_range(const VariableLookup& lookup) {
  const auto text = VariableReader(lookup).text(port_range_variable);
  if (!text) return {};
  const auto dash = text->find('-');
  const auto first = parse_port(std::string_view(*text).substr(0, dash));
  const auto last = dash == std::string::npos ? first : parse_port(std::string_view(*text).substr(dash + 1));
  if (!first || !last || *first > *last) {
    throw UsageError(format_variable(port_range_variable, *text) +
                     " is no range of ports: set it to two ports from 1 to 65535, such as 29500-29600");
  }
  return {.first = *first, .last = *last};
}

std::string describe_ports(const PortRange& range) {
  return range == PortRange{} ? "any" : std::to_string(range.first) + "-" + std::to_string(range.last);
}

in_port_t& port_in(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

void bind_free_port(int socket, sockaddr_storage address, const PortRange& range) {
  for (int port = range.first; port <= range.last; ++port) {
    port_in(address) = htons(static_cast<std::uint16_t>(port));
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return;
    if (errno != EADDRINUSE || range == PortRange{}) {
      throw std::system_error(errno, std::generic_category(), "binding a port");
    }
  }
  throw UsageError(
      "every port of " + std::string(port_range_variable) + "=" + describe_ports(range) +
      " is in use on this node: each rank needs one, and the first node up to two more. Choose a longer "
      "range, end the jobs that use it, or wait: a port is free again a minute after its last connection.");
}

}  // namespace tutti
