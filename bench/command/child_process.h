#pragma once
// Runs one program until it exits.
#include <map>
#include <string>
#include <vector>

namespace tutti::bench {

/// Runs `command` (its first word is a path) with `extra` environment variables. Returns its exit code, or 128 + signal
/// if a signal ended it. Forwards SIGINT and SIGTERM to the program. If this process is killed, the program receives
/// SIGTERM. Call it on the main thread. Throws UsageError if the program cannot be run.
int run_program(const std::vector<std::string>& command, const std::map<std::string, std::string>& extra = {});

}  // namespace tutti::bench
