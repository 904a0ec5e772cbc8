#pragma once
// Parses links and sizes of the command line.
#include <string>
#include <vector>

#include "plan/description.h"

namespace tutti::plan {

/// Links with a name. Their latencies are assumptions for one switch between two machines.
const std::vector<Link>& known_links();

/// Parses "10gbit" or another known name, or "NAME=LATENCY,RATE": the one-way latency in microseconds and the rate in
/// Gbit/s. Throws UsageError.
Link read_link(const std::string& word);

/// Parses one link, or several names with commas between them: "10gbit,25gbit". Throws UsageError.
std::vector<Link> read_links(const std::string& word);

/// Bytes: "27.4MB", "26MiB", "1e6". Throws UsageError.
double read_bytes(const std::string& word);

}  // namespace tutti::plan
