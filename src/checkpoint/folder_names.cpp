#include "checkpoint/folder_names.h"

#include <charconv>
#include <string>
#include <string_view>

namespace tutti::checkpoint {
namespace {

constexpr std::string_view prefix = "checkpoint_";
constexpr std::string_view before_step = "_step_";
constexpr std::string_view partial = ".partial";
constexpr std::string_view removed = ".removed";

std::filesystem::path hidden(const std::filesystem::path& folder, std::string_view suffix) {
  std::string name(1, '.');
  name += folder.filename().string();
  name += suffix;
  return folder.parent_path() / name;
}

/// Accepts a number as std::to_string writes it; tutti never writes "007".
std::optional<std::int64_t> number_in(const std::string& digits) {
  std::int64_t number = -1;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc{} || stopped != end || number < 0 || std::to_string(number) != digits) return std::nullopt;
  return number;
}

}  // namespace

std::filesystem::path partial_of(const std::filesystem::path& folder) {
  return hidden(folder, partial);
}
std::filesystem::path removed_of(const std::filesystem::path& folder) {
  return hidden(folder, removed);
}

std::string checkpoint_name(std::int64_t number, std::int64_t step) {
  std::string name(prefix);
  name += std::to_string(number);
  name += before_step;
  return name + std::to_string(step);
}

std::optional<std::int64_t> checkpoint_number(const std::filesystem::path& folder) {
  std::string name = folder.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  name.erase(0, prefix.size());
  const auto middle = name.find(before_step);
  if (middle == std::string::npos) return number_in(name);
  return number_in(name.substr(middle + before_step.size())) ? number_in(name.substr(0, middle)) : std::nullopt;
}

bool is_leftover(const std::filesystem::path& folder) {
  std::string name = folder.filename().string();
  if (!name.starts_with('.')) return false;
  for (const std::string_view suffix : {partial, removed}) {
    if (name.ends_with(suffix)) return checkpoint_number(name.substr(1, name.size() - 1 - suffix.size())).has_value();
  }
  return false;
}

}  // namespace tutti::checkpoint
