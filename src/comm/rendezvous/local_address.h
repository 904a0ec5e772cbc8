#pragma once
#include <string>

namespace tutti::comm {

/// This machine's source address for packets to `host` (no packet is sent). Throws UsageError where there is none.
std::string local_address_towards(const std::string& host);

}  // namespace tutti::comm
