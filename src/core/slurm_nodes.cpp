#include "core/slurm_nodes.h"

#include <charconv>
#include <cstddef>
#include <optional>

#include "core/variables.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::size_t max_nodes = 100'000;

struct Malformed {};

/// Splits at commas outside brackets.
std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    if (at == list.size() || (list[at] == ',' && !inside)) {
      if (at == begin) throw Malformed{};
      parts.push_back(list.substr(begin, at - begin));
      begin = at + 1;
    } else if (list[at] == '[' || list[at] == ']') {
      if (inside == (list[at] == '[')) throw Malformed{};
      inside = !inside;
    }
  }
  if (inside) throw Malformed{};
  return parts;
}

int number_of(std::string_view digits) {
  int number = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, number);
  if (digits.empty() || error != std::errc{} || stopped != end || number < 0) throw Malformed{};
  return number;
}

/// "01-03" is 01, 02, 03.
std::vector<std::string> numbers_of(std::string_view range) {
  const auto dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const int from = number_of(first);
  const int to = dash == std::string_view::npos ? from : number_of(range.substr(dash + 1));
  if (to < from || static_cast<std::size_t>(to - from) >= max_nodes) throw Malformed{};
  std::vector<std::string> numbers;
  for (int number = from; number <= to; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    numbers.push_back(std::move(digits));
  }
  return numbers;
}

/// Expands one name with any number of brackets: rack[0-1]node[1-2].
std::vector<std::string> expand_name(std::string_view name) {
  std::vector<std::string> names{""};
  while (!name.empty()) {
    const auto open = name.find('[');
    for (auto& begun : names) begun += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto close = name.find(']', open);
    std::vector<std::string> longer;
    for (const auto& begun : names) {
      for (const auto range : parts_of(name.substr(open + 1, close - open - 1))) {
        for (const auto& number : numbers_of(range)) longer.push_back(begun + number);
        if (longer.size() > max_nodes) throw Malformed{};
      }
    }
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& variable, std::string_view list) {
  try {
    std::vector<std::string> nodes;
    for (const auto part : parts_of(list)) {
      for (auto& name : expand_name(part)) nodes.push_back(std::move(name));
    }
    return nodes;
  } catch (const Malformed&) {
    throw UsageError(format_variable(variable, std::string(list)) +
                     " is not a list of nodes such as node[01-03,07],gpu1");
  }
}

std::vector<int> expand_counts(const std::string& variable, std::string_view counts) {
  try {
    std::vector<int> all;
    for (auto part : parts_of(counts)) {
      std::size_t times = 1;
      if (const auto open = part.find("(x"); open != std::string_view::npos) {
        if (part.back() != ')') throw Malformed{};
        times = static_cast<std::size_t>(number_of(part.substr(open + 2, part.size() - open - 3)));
        part = part.substr(0, open);
      }
      if (all.size() + times > max_nodes) throw Malformed{};
      all.insert(all.end(), times, number_of(part));
    }
    return all;
  } catch (const Malformed&) {
    throw UsageError(format_variable(variable, std::string(counts)) + " is not a list of counts such as 4(x2),1");
  }
}

}  // namespace tutti
