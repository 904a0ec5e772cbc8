#include "report/report.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "report/spread.h"
#include "sync/mode.h"

namespace tutti::bench {
namespace {

constexpr const char* without_communication = "none";

const Row* find_row(const Results& results, const std::string& system, const std::string& mode) {
  const auto row = std::ranges::find_if(
      results.rows, [&](const Row& candidate) { return candidate.system == system && candidate.mode == mode; });
  return row == results.rows.end() ? nullptr : &*row;
}

std::string label(const Row& row) {
  if (row.system == "hand-written") return "hand-written loop";
  if (row.system == without_communication) return "no communication";
  if (row.system == "none in Python") return "no communication, Python";
  return row.own_processes ? row.system + " [own processes]" : row.system;
}

std::string cell(const Row* row, double alone) {
  if (row == nullptr) return "";
  const auto [least, most] = std::ranges::minmax(row->milliseconds);
  const auto middle = median(row->milliseconds);
  return number(middle, 1) + " ×" + number(middle / alone, 2) + " (" + number(least, 0) + "-" + number(most, 0) + ")";
}

std::vector<std::string> systems_of(const Results& results) {
  std::vector<std::string> systems;
  for (const auto& row : results.rows) {
    if (std::ranges::find(systems, row.system) == systems.end()) systems.push_back(row.system);
  }
  return systems;
}

std::string place(const SyncOptions& options) {
  const auto ranks = counted(options.ranks, "rank") + " on " + counted(options.nodes, "node");
  return options.nodes == 1 ? ranks : ranks + " at " + options.rate;
}

void write_table(std::ostream& out, const Results& results) {
  const auto* none = find_row(results, without_communication, name_of(Mode::baseline));
  const double alone = none == nullptr ? 1 : median(none->milliseconds);
  out << "| |";
  for (const auto mode : all_modes) out << ' ' << name_of(mode) << " |";
  out << "\n|---|";
  for (std::size_t i = 0; i < all_modes.size(); ++i) out << "---|";
  out << '\n';
  for (const auto& system : systems_of(results)) {
    const auto any = std::ranges::find(results.rows, system, &Row::system);
    out << "| " << label(*any) << " |";
    for (const auto mode : all_modes) out << ' ' << cell(find_row(results, system, name_of(mode)), alone) << " |";
    out << '\n';
  }
}

void write_notes(std::ostream& out, const Results& results, const SyncOptions& options, const Machine& machine,
                 const std::string& model) {
  out << "- " << options.batches << " batches of " << options.batch_size
      << " sequences on each rank, an optimizer step every " << options.steps << "; "
      << number(static_cast<double>(results.gradient_bytes) / 1e6, 1) << " MB of fp32 gradients in a synchronization\n";
  out << "- " << model << '\n';
  for (const auto& system : systems_of(results)) {
    const auto row = std::ranges::find(results.rows, system, &Row::system);
    if (!row->settings.empty()) out << "- " << label(*row) << ": " << row->settings << '\n';
  }
  if (std::ranges::any_of(results.rows, &Row::own_processes)) {
    out << "- [own processes]: Python, in separate runs before and after the other rows, not alternating with them\n";
  }
  out << "- " << describe(machine) << '\n';
}

std::string markdown(const Results& results, const SyncOptions& options, const Machine& machine,
                     const std::string& model) {
  std::ostringstream out;
  out << "Milliseconds per batch, " << place(options) << ": median of " << options.repeats
      << ", × the time without communication, (min-max).\n\n";
  write_table(out, results);
  out << '\n';
  write_notes(out, results, options, machine, model);
  return out.str();
}

}  // namespace

std::string describe_gpt(const SyncOptions& options) {
  return "GPT of width " + std::to_string(options.width) + ", " + counted(options.layers, "layer") + ", context " +
         std::to_string(options.context) + ", vocabulary " + std::to_string(options.vocabulary) +
         "; LibTorch's AdamW unless a row names another; one thread for each rank";
}

void write_json(const Results& results, const SyncOptions& options, const Machine& machine) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& row : results.rows) {
    const auto [least, most] = std::ranges::minmax(row.milliseconds);
    nlohmann::ordered_json object{{"system", row.system},
                                  {"mode", row.mode},
                                  {"nodes", options.nodes},
                                  {"ranks", options.ranks},
                                  {"median", median(row.milliseconds)},
                                  {"min", least},
                                  {"max", most},
                                  {"unit", "ms/batch"},
                                  {"bytes", row.system.starts_with(without_communication) ? 0 : results.gradient_bytes},
                                  {"dtype", "float32"},
                                  {"steps", options.steps},
                                  {"batches", options.batches},
                                  {"batch_size", options.batch_size},
                                  {"repeats", row.milliseconds.size()},
                                  {"own_processes", row.own_processes},
                                  {"settings", row.settings},
                                  {"libtorch", machine.libtorch},
                                  {"commit", machine.commit}};
    object["rate"] = options.nodes == 1 ? nlohmann::ordered_json() : nlohmann::ordered_json(options.rate);
    rows.push_back(std::move(object));
  }
  std::ofstream out(options.json);
  out << rows.dump(2) << '\n';
  out.close();
  if (!out) throw std::runtime_error("cannot write " + options.json);
}

int report(const Results& results, const SyncOptions& options, const Machine& machine, const std::string& model) {
  std::cout << markdown(results, options, machine, model) << std::flush;
  if (!options.json.empty()) write_json(results, options, machine);
  for (const auto& fault : results.faults) std::cerr << "tutti bench: wrong result: " << fault << '\n';
  return results.faults.empty() ? 0 : 1;
}

}  // namespace tutti::bench
