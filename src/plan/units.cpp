#include "plan/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti::plan {
namespace {

std::optional<double> read_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

const std::vector<Link>& known_links() {
  static const std::vector<Link> links{{.name = "1gbit", .latency_us = 50, .gbit = 1},
                                       {.name = "10gbit", .latency_us = 20, .gbit = 10},
                                       {.name = "25gbit", .latency_us = 10, .gbit = 25},
                                       {.name = "100gbit", .latency_us = 5, .gbit = 100}};
  return links;
}

Link read_link(const std::string& word) {
  const auto known = std::ranges::find(known_links(), word, &Link::name);
  if (known != known_links().end()) return *known;
  const std::string_view text = word;
  const auto equals = text.find('=');
  const auto comma = text.find(',', equals == std::string_view::npos ? 0 : equals);
  const bool has_name = equals != std::string_view::npos && equals > 0 && text.find(',') > equals;
  if (has_name && comma != std::string_view::npos) {
    const auto latency = read_number(text.substr(equals + 1, comma - equals - 1));
    const auto rate = read_number(text.substr(comma + 1));
    // Beyond these limits, 1000 s and 1 bit/s, the time of a step could be infinite.
    if (latency && rate && *latency >= 0 && *latency <= 1e9 && *rate >= 1e-9) {
      return {.name = word.substr(0, equals), .latency_us = *latency, .gbit = *rate};
    }
  }
  std::string names;
  for (const Link& link : known_links()) names += link.name + ", ";
  throw UsageError("--link " + word + " is not a link: use one of " + names +
                   "or NAME=LATENCY,RATE in microseconds and Gbit/s, for example lab=30,40");
}

std::vector<Link> read_links(const std::string& word) {
  if (word.find('=') != std::string::npos) return {read_link(word)};
  std::vector<Link> links;
  std::size_t begin = 0;
  for (auto comma = word.find(','); comma != std::string::npos; comma = word.find(',', begin)) {
    links.push_back(read_link(word.substr(begin, comma - begin)));
    begin = comma + 1;
  }
  links.push_back(read_link(word.substr(begin)));
  return links;
}

double read_bytes(const std::string& word) {
  static const std::map<std::string, double, std::less<>> units{
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const auto number = word.substr(0, word.find_last_of("0123456789.") + 1);
  const auto unit = units.find(word.substr(number.size()));
  const auto value = read_number(number);
  if (!value || *value <= 0 || unit == units.end()) {
    throw UsageError("'" + word + "' is not a size: use a number of bytes above 0, such as 27.4MB or 26MiB");
  }
  return *value * unit->second;
}

}  // namespace tutti::plan
