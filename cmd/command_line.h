#pragma once
// Parses the command lines of `tutti` and of the programs behind it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nearest_word.h"
#include "tutti/core/error.h"

namespace tutti {

/// The help of all commands: "-n,--nproc-per-node NUMBER [1]". `usage` follows the command's name in the first line.
class CommandHelp : public CLI::Formatter {
 public:
  explicit CommandHelp(std::string usage = "") : usage_(std::move(usage)) {}

  std::string make_usage(const CLI::App* app, std::string name) const override {
    return usage_.empty() ? CLI::Formatter::make_usage(app, name) : "Usage: " + name + " " + usage_ + "\n";
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0) return "";  // a flag
    const std::string type = option->get_type_name();
    const bool is_number = type.find("INT") != std::string::npos || type.find("FLOAT") != std::string::npos ||
                           type.find("NUMBER") != std::string::npos;
    std::string text = option->get_positional() ? "" : is_number ? " NUMBER" : " TEXT";
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
    return text;
  }

 private:
  std::string usage_;
};

namespace command_line {

/// The option's name as `words` spell it, or else its longest one.
inline std::string spelling(const CLI::Option& option, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  for (const auto& word : words) {
    for (const auto& name : names) {
      const bool is_long = name.starts_with("--");
      if (word == name || word.starts_with(is_long ? name + "=" : name)) return name;
    }
  }
  return names.empty() ? option.get_name() : names.back();
}

/// The option that CLI11's message names.
inline const CLI::Option* option_in(const CLI::App& app, const std::string& message) {
  const CLI::Option* found = nullptr;
  auto earliest = std::string::npos;
  for (const auto* option : app.get_options()) {
    const std::string name = option->get_name();
    const auto at = (' ' + message).find(' ' + name);
    if (name.empty() || at >= earliest) continue;
    if (std::min(message.find_first_of(": ", at), message.size()) != at + name.size()) continue;
    found = option;
    earliest = at;
  }
  return found;
}

inline bool is_whole_number(const std::string& text) {
  const auto digits = text.find_first_not_of("+-");
  return digits <= 1 && text.find_first_not_of("0123456789", digits) == std::string::npos;
}

/// The kind of number that the option takes, if `value` is none.
inline std::string describe_no_number(const std::string& name, const CLI::Option& option, const std::string& value) {
  const bool is_real = option.get_type_name().find("FLOAT") != std::string::npos;
  return name + " takes a " + (is_real ? "number" : "whole number") + ", not '" + value + "'";
}

/// What CLI11 reports, in terms of the words that the user typed.
inline std::string describe(const CLI::ParseError& error, const CLI::App& app, const std::vector<std::string>& words) {
  const std::string message = error.what();
  const auto* option = option_in(app, message);
  if (option == nullptr) return message;
  const std::string name = spelling(*option, words);
  if (error.get_name() == "RequiredError") return name + " is missing";
  if (error.get_name() == "ConversionError" && !option->results().empty()) {
    const std::string& value = option->results().back();
    if (is_whole_number(value)) return name + " " + value + " is out of range";
    return describe_no_number(name, *option, value);
  }
  // CLI::Range reports a word that is no number as one outside the range.
  constexpr std::string_view before = " Value ";
  const auto begin = message.find(before);
  const auto end = message.find(" not in range");
  if (begin != std::string::npos && end != std::string::npos && end > begin) {
    const std::string value = message.substr(begin + before.size(), end - begin - before.size());
    double number = 0;
    if (!CLI::detail::lexical_cast(value, number)) return describe_no_number(name, *option, value);
  }
  if (message.find("At Most") != std::string::npos) return name + " is given more than once: give it once";
  if (message.ends_with(" missing")) return name + " needs a value after it";
  std::string reason = message.substr(std::min(message.find(": "), message.size()));
  constexpr std::string_view zeros = ".000000";  // of std::to_string()
  for (auto at = reason.find(zeros); at != std::string::npos; at = reason.find(zeros)) reason.erase(at, zeros.size());
  return reason.empty() ? message : name + reason;
}

/// Throws UsageError for the first unknown option among the words that parsing has left over.
inline void refuse_unknown_option(const CLI::App& app) {
  const auto unknown = app.remaining();
  const auto option = std::ranges::find_if(unknown, [](const std::string& word) { return word.starts_with('-'); });
  if (option == unknown.end()) return;
  const std::string name = option->substr(0, option->find('='));
  std::vector<std::string> known;
  for (const auto* one : app.get_options()) {
    if (one->get_group().empty()) continue;  // not for users
    for (const auto& long_name : one->get_lnames()) known.push_back("--" + long_name);
  }
  const auto meant = nearest_word(name, known);
  throw UsageError("there is no option " + name + ": " + (meant ? "did you mean " + *meant + "? " : "") + "see '" +
                   app.get_name() + " --help'");
}

/// Throws UsageError for a word that is neither an option nor an argument.
inline void refuse_extra_word(const CLI::App& app) {
  const auto extra = app.remaining();
  if (extra.empty()) return;
  throw UsageError("the word '" + extra.front() + "' is one too many: see '" + app.get_name() + " --help'");
}

/// Throws UsageError for values that CLI11 accepts by mistake: nan, which passes CLI::Range, inf, and a negative number
/// for an unsigned option, which strtoull() wraps around.
inline void refuse_invalid_numbers(const CLI::App& app, const std::vector<std::string>& words) {
  const std::string see = ": see '" + app.get_name() + " --help'";
  for (const auto* option : app.get_options()) {
    const std::string type = option->get_type_name();
    for (const std::string& value : option->results()) {
      double number = 0;
      if (type.starts_with("FLOAT") && CLI::detail::lexical_cast(value, number) && !std::isfinite(number)) {
        throw UsageError(spelling(*option, words) + " takes a number, not '" + value + "'" + see);
      }
      if (type.starts_with("UINT") && value.starts_with('-')) {
        throw UsageError(spelling(*option, words) + " takes a number of 0 or more, not '" + value + "'" + see);
      }
    }
  }
}

}  // namespace command_line

/// Parses `words` into the options of `app`, whose name is the command's. Returns false after --help, which it prints.
/// `usage`: see CommandHelp. Throws UsageError.
inline bool parse_command_line(CLI::App& app, const std::vector<std::string>& words, const std::string& usage = "") {
  const std::string command = app.get_name();
  app.formatter(std::make_shared<CommandHelp>(usage));
  app.set_help_flag("-h,--help", "Show this text");
  app.allow_extras();  // CLI11's own message reverses their order
  std::vector<const char*> arguments{command.c_str()};
  for (const auto& word : words) arguments.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    command_line::refuse_unknown_option(app);  // CLI11 took the word behind it for an option
    throw UsageError(command_line::describe(error, app, words) + ": see '" + command + " --help'");
  }
  command_line::refuse_unknown_option(app);
  command_line::refuse_extra_word(app);
  command_line::refuse_invalid_numbers(app, words);
  return true;
}

}  // namespace tutti
