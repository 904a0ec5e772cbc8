#include <charconv>
#include <sstream>

#include "tutti/core/error.h"
#include "tutti/detail/launch/launch_hosts.h"

namespace tutti {
namespace {

constexpr int max_slots = 100'000;

UsageError wrong_line(const std::string& name, int line, const std::string& text) {
  return UsageError(name + ":" + std::to_string(line) + ": '" + text + "' is not a line such as: host slots=4");
}

/// 0 if it is not a number of slots.
int slots_in(const std::string& digits) {
  int slots = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, slots);
  return error == std::errc{} && stopped == end && slots <= max_slots ? slots : 0;
}

UsageError unequal(const std::string& name, const HostSlots& host, const HostSlots& first) {
  return UsageError(name + ": " + host.host + " has " + std::to_string(host.slots) + " and " + first.host + " has " +
                    std::to_string(first.slots) + " slots: tutti launch needs the same number on every host");
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& name, const std::string& text, int default_slots) {
  std::vector<HostSlots> hosts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    HostSlots host{.host = "", .slots = default_slots};
    std::string more;
    if (!(words >> host.host)) continue;
    constexpr std::string_view label = "slots=";
    // An IPv6 address has several colons.
    const auto colon = host.host.find(':') == host.host.rfind(':') ? host.host.find(':') : std::string::npos;
    if (words >> more) {
      std::string rest;
      if (!more.starts_with(label) || words >> rest) throw wrong_line(name, number, line);
      host.slots = slots_in(more.substr(label.size()));
    } else if (colon != std::string::npos) {
      host.slots = slots_in(host.host.substr(colon + 1));
      host.host.resize(colon);
    }
    // ssh would take a name with a leading '-' for an option.
    if (host.slots < 1 || host.host.empty() || host.host.starts_with('-')) throw wrong_line(name, number, line);
    if (!hosts.empty() && hosts.front().slots != host.slots) {
      throw unequal(name, host, hosts.front());
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) throw UsageError(name + " names no host: write lines such as: host slots=4");
  return hosts;
}

}  // namespace tutti
