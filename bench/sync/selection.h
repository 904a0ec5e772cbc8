#pragma once
// Which cells of the table are measured.
#include <algorithm>
#include <string>
#include <vector>

namespace tutti::bench {

/// Names of systems and modes; empty: all. The loop without communication is measured always.
struct Selection {
  std::vector<std::string> systems{};
  std::vector<std::string> modes{};

  bool has_system(const std::string& name) const { return systems.empty() || std::ranges::count(systems, name) > 0; }
  bool has_mode(const std::string& name) const { return modes.empty() || std::ranges::count(modes, name) > 0; }
};

}  // namespace tutti::bench
