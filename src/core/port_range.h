#pragma once
// The ports from which a process takes a free one, for networks whose firewalls allow only some.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "tutti/core/environment.h"

namespace tutti {

/// The variable with the range: FIRST-LAST.
inline constexpr const char* port_range_variable = "TUTTI_PORT_RANGE";

struct PortRange {
  std::uint16_t first = 0;  ///< 0: the system chooses
  std::uint16_t last = 0;

  bool operator==(const PortRange&) const = default;
};

/// Throws UsageError unless the variable is unset, empty, or two ports in order.
PortRange read_port_range(const VariableLookup& lookup);

/// 29500-29600, or "any".
std::string describe_ports(const PortRange& range);

/// Binds the socket to the address with a free port of the range, or with one that the system chooses. Throws
/// std::system_error, and UsageError if every port of the range is in use.
void bind_free_port(int socket, sockaddr_storage address, const PortRange& range);

/// The port of an IPv4 or IPv6 address, in the network's byte order.
in_port_t& port_in(sockaddr_storage& address);

}  // namespace tutti
