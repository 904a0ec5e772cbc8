#include "command/arguments.h"

#include <unistd.h>

#include <filesystem>
#include <regex>

#include "command_line.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

void check_json_file(const std::string& file) {
  if (file.empty()) return;
  const auto parent = std::filesystem::absolute(file).parent_path();
  if (std::filesystem::is_directory(file) || ::access(parent.c_str(), W_OK) != 0) {
    throw UsageError("cannot write --json " + file + ": give a file name in a folder that exists and is writable");
  }
}

void check_place(const Place& place, bool rate_given) {
  if (place.ranks % place.nodes != 0) {
    throw UsageError("--ranks " + std::to_string(place.ranks) + " do not divide evenly among --nodes " +
                     std::to_string(place.nodes));
  }
  if (rate_given && place.nodes == 1) throw UsageError("--rate is the rate of a link between nodes: add --nodes 2");
  if (!std::regex_match(place.rate, std::regex(R"(none|(?=.*[1-9])[0-9]+(\.[0-9]+)?[kmg]bit)"))) {
    throw UsageError("--rate '" + place.rate + "' is not a rate: give one such as 1gbit or 100mbit, or none");
  }
}

}  // namespace

ArgumentParser::ArgumentParser(const std::string& benchmark, const std::string& description, CommonOptions& options)
    : CLI::App(description),
      options_(options),
      json_(add_option("--json", options.json, "Also write the rows to this file")) {
  name("tutti bench " + benchmark);
  option_defaults()->always_capture_default();
  add_option("--results", options.results)->group("");
}

void ArgumentParser::add_place(Place& place) {
  refuse_for_ranks({add_option("--ranks", place.ranks, "Ranks of all nodes")->check(CLI::Range(1, 1024))});
  add_nodes(place);
}

void ArgumentParser::add_nodes(Place& place) {
  place_ = &place;
  refuse_for_ranks({add_option("--nodes", place.nodes, "1, or 2: two network namespaces of this machine (needs root)")
                        ->check(CLI::Range(1, 2)),
                    add_option("--rate", place.rate, "Rate of the link between two nodes: 1gbit, 100mbit, none")});
}

void ArgumentParser::refuse_for_ranks(const std::vector<CLI::Option*>& options) {
  refused_.insert(refused_.end(), options.begin(), options.end());
}

void ArgumentParser::parse_words(const Invocation& invocation) {
  if (!parse_command_line(*this, invocation.words)) throw Exit{0};
  if (invocation.under_launcher() && options_.results.empty()) {
    for (const auto* option : refused_) {
      if (option->count() == 0) continue;
      throw UsageError(option->get_name() + " is not allowed on a rank that a launcher started: remove it");
    }
  }
  if (place_ != nullptr) check_place(*place_, count("--rate") > 0);
  check_json_file(options_.json);
}

void check_gpt_width(std::int64_t width) {
  if (width % 4 == 0) return;
  throw UsageError("--width " + std::to_string(width) + " is not a multiple of the 4 attention heads");
}

}  // namespace tutti::bench
