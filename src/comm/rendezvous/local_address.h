#pragma once
#include <string>

namespace tutti::comm {

/// This machine's source address for packets to `host` (no packet is sent). Where `host` is a name of this machine that
/// means loopback here, that of the default route or of the first network interface. Waits up to 30 s for a name that
/// cannot be resolved yet. Throws UsageError where there is no address.
std::string local_address_towards(const std::string& host);

/// Whether `host` resolves to addresses of other machines only.
bool is_another_machine(const std::string& host);

/// The address at which other nodes reach this rank: that of the interface that GLOO_SOCKET_IFNAME names or, if it
/// names none, local_address_towards(`host`). Empty if `host` is empty, too. Throws UsageError.
std::string network_address(const std::string& host);

}  // namespace tutti::comm
