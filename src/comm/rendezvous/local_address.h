#pragma once
#include <string>

namespace tutti::comm {

/// Whether `host` resolves to addresses of other machines only.
bool is_another_machine(const std::string& host);

/// The address at which other nodes reach this rank: that of the interface that GLOO_SOCKET_IFNAME names or, if it
/// names none, this machine's source address for packets to `host` (no packet is sent). Where `host` is a name of this
/// machine that means loopback here, that of the default route or of the first network interface. Waits up to 30 s for
/// a name that cannot be resolved yet. Empty if `host` is empty and no interface is named. Throws UsageError where
/// there is no address.
std::string network_address(const std::string& host);

}  // namespace tutti::comm
