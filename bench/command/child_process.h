#pragma once
// Running one program to its end.
#include <map>
#include <string>
#include <vector>

namespace tutti::bench {

/// Runs `command` (its first word is a path) with `extra` variables and returns its exit code, 128 + signal when a
/// signal ended it. SIGINT and SIGTERM that arrive meanwhile are passed on. When this process is killed, the
/// program gets SIGTERM. Call it on the main thread.
int run_program(const std::vector<std::string>& command, const std::map<std::string, std::string>& extra = {});

}  // namespace tutti::bench
