#include "checkpoint/folder_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <string_view>

#include "core/random.h"

namespace tutti::checkpoint {
namespace {

constexpr std::string_view prefix = "checkpoint_";
constexpr std::string_view before_step = "_step_";
constexpr std::string_view partial_suffix = ".partial";
constexpr std::string_view removed_suffix = ".removed";
constexpr std::string_view owner_suffix = ".owner";
constexpr std::size_t token_digits = 16;

std::filesystem::path hidden_name(const std::filesystem::path& folder, const std::string& token,
                                  std::string_view suffix) {
  std::string name(1, '.');
  name += folder.filename().string();
  if (!token.empty()) name.append(1, '.').append(token);
  name += suffix;
  return folder.parent_path() / name;
}

bool is_token(std::string_view text) {
  return text.size() == token_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
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

std::string new_token() {
  std::array<char, token_digits + 1> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, random_nonce()[0]);
  return text.data();
}

std::filesystem::path partial_of(const std::filesystem::path& folder, const std::string& token) {
  return hidden_name(folder, token, partial_suffix);
}
std::filesystem::path removed_of(const std::filesystem::path& folder, const std::string& token) {
  return hidden_name(folder, token, removed_suffix);
}
std::filesystem::path owner_of(const std::filesystem::path& folder) {
  return hidden_name(folder, {}, owner_suffix);
}

std::optional<std::filesystem::path> folder_of_hidden(const std::filesystem::path& hidden) {
  std::string name = hidden.filename().string();
  if (!name.starts_with('.')) return std::nullopt;
  for (const std::string_view suffix : {partial_suffix, removed_suffix, owner_suffix}) {
    if (!name.ends_with(suffix) || name.size() == suffix.size()) continue;
    name = name.substr(1, name.size() - 1 - suffix.size());
    const auto dot = name.rfind('.');
    if (suffix != owner_suffix && dot != std::string::npos && is_token(std::string_view(name).substr(dot + 1))) {
      name.resize(dot);
    }
    if (name.empty()) return std::nullopt;
    return hidden.parent_path() / name;
  }
  return std::nullopt;
}

std::string checkpoint_name(std::int64_t number, std::int64_t step) {
  std::string name(prefix);
  name += std::to_string(number);
  name += before_step;
  return name + std::to_string(step);
}

std::optional<CheckpointNumbers> checkpoint_numbers(const std::filesystem::path& folder) {
  std::string name = folder.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  name.erase(0, prefix.size());
  const auto middle = name.find(before_step);
  const auto number = number_in(name.substr(0, middle));
  if (!number) return std::nullopt;
  if (middle == std::string::npos) return CheckpointNumbers{.number = *number};
  const auto step = number_in(name.substr(middle + before_step.size()));
  if (!step) return std::nullopt;
  return CheckpointNumbers{.number = *number, .step = *step};
}

std::optional<std::int64_t> checkpoint_number(const std::filesystem::path& folder) {
  const auto numbers = checkpoint_numbers(folder);
  return numbers ? std::optional(numbers->number) : std::nullopt;
}

bool is_leftover(const std::filesystem::path& folder) {
  const auto hidden_of = folder_of_hidden(folder);
  return hidden_of && checkpoint_number(*hidden_of).has_value();
}

}  // namespace tutti::checkpoint
