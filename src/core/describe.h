#pragma once
// Formats ranks and durations for messages.
#include <chrono>
#include <string>
#include <vector>

namespace tutti {

/// "rank 2", "ranks 0, 1"; of more than 8 ranks, "ranks 0, 5 to 12".
std::string describe_ranks(const std::vector<int>& ranks);
/// "30 s", "1500 ms".
std::string describe_duration(std::chrono::milliseconds duration);
/// The first line of an error's text. LibTorch and c10d append a backtrace.
std::string first_line(const std::string& text);

}  // namespace tutti
