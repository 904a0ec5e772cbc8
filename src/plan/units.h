#pragma once
// Links and sizes as people write them.
#include <string>
#include <vector>

#include "plan/description.h"

namespace tutti::plan {

/// Links that have a name. Their latencies are assumptions: of a switch and two machines side by side.
const std::vector<Link>& known_links();

/// "10gbit", a known one, or "NAME=LATENCY,RATE" with the microseconds that a packet takes one way and the Gbit/s that
/// a node sends. Throws UsageError.
Link read_link(const std::string& word);

/// Bytes: "27.4MB", "26MiB", "1e6". Throws UsageError.
double read_bytes(const std::string& word);

}  // namespace tutti::plan
