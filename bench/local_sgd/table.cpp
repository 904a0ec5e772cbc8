#include "local_sgd/table.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "report/machine.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

}  // namespace

Statistic statistic(const std::vector<MethodRun>& runs, double MethodRun::*field) {
  Statistic result{.mean = 0, .least = runs.front().*field, .most = runs.front().*field};
  for (const MethodRun& run : runs) {
    result.mean += run.*field / static_cast<double>(runs.size());
    result.least = std::min(result.least, run.*field);
    result.most = std::max(result.most, run.*field);
  }
  return result;
}

std::string describe(const std::string& method, int seed, const MethodRun& run) {
  return method + ", seed " + std::to_string(seed) + ": " + number(run.seconds, 2) + " s, " +
         number(run.bytes / 1e6, 2) + " MB, stalled " + number(run.stalled, 2) + " s, held-out loss " +
         number(run.loss, 4);
}

void MethodTable::add(const std::string& method, const MethodRun& run) {
  for (auto& [name, runs] : rows_) {
    if (name == method) return runs.push_back(run);
  }
  rows_.emplace_back(method, std::vector<MethodRun>{run});
}

std::string MethodTable::markdown(const LocalSGDBenchOptions& options) const {
  std::ostringstream out;
  const Machine machine = describe_machine();
  const auto& baseline = rows_.front().second;
  const double base_seconds = statistic(baseline, &MethodRun::seconds).mean;
  const double base_bytes = statistic(baseline, &MethodRun::bytes).mean;
  const double base_loss = statistic(baseline, &MethodRun::loss).mean;
  out << "| method | steps between exchanges | seconds | faster than " << rows_.front().first
      << " | MB sent by a rank | fewer bytes | stalled s "
      << "| held-out loss | to " << rows_.front().first << " |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const auto& [name, runs] : rows_) {
    const Statistic seconds = statistic(runs, &MethodRun::seconds);
    const Statistic loss = statistic(runs, &MethodRun::loss);
    const double bytes = statistic(runs, &MethodRun::bytes).mean;
    const std::int64_t interval = runs.front().interval;
    out << "| " << name << " | " << (interval > 0 ? std::to_string(interval) : "every") << " | "
        << number(seconds.mean, 1) << " (" << number(seconds.least, 1) << "-" << number(seconds.most, 1) << ") | "
        << number(base_seconds / seconds.mean, 1) << "x | " << number(bytes / 1e6, 2) << " | "
        << (bytes > 0 ? number(base_bytes / bytes, 0) + "x" : "-") << " | "
        << number(statistic(runs, &MethodRun::stalled).mean, 2) << " | " << number(loss.mean, 4) << " ("
        << number(loss.least, 4) << "-" << number(loss.most, 4) << ") | " << (loss.mean >= base_loss ? "+" : "")
        << number(100 * (loss.mean / base_loss - 1), 1) << "% |\n";
  }
  out << "\n" << options.ranks << " ranks on " << options.nodes << (options.nodes == 1 ? " node" : " nodes");
  if (options.nodes > 1) out << " at " << options.rate;
  out << ", one thread each; " << options.steps << " optimizer steps of " << options.batch_size << " windows of "
      << options.context << " bytes a rank; mean over " << options.seeds
      << " seeds (least-most). The held-out loss is on "
      << (options.validate ? "the half of the held-out text on which options are chosen"
                           : "the half of the held-out text on which no option was chosen")
      << ".\n"
      << machine.cores << " cores, " << machine.cpu << "; LibTorch " << machine.libtorch << "; commit "
      << machine.commit << ".\n";
  return out.str();
}

void MethodTable::write_json(const LocalSGDBenchOptions& options) const {
  const Machine machine = describe_machine();
  auto rows = nlohmann::json::array();
  for (const auto& [name, runs] : rows_) {
    for (std::size_t seed = 0; seed < runs.size(); ++seed) {
      rows.push_back({{"method", name},
                      {"seed", seed + 1},
                      {"seconds", runs[seed].seconds},
                      {"bytes_sent", runs[seed].bytes},
                      {"seconds_blocked", runs[seed].stalled},
                      {"held_out_loss", runs[seed].loss},
                      {"ranks", options.ranks},
                      {"nodes", options.nodes},
                      {"rate", options.nodes > 1 ? options.rate : ""},
                      {"steps", options.steps},
                      {"local_steps", runs[seed].interval},
                      {"validate", options.validate},
                      {"commit", machine.commit}});
    }
  }
  std::ofstream out(options.json);
  out << rows.dump(1) << '\n';
  out.close();
  if (!out) throw std::runtime_error("cannot write " + options.json);
}

MethodTable MethodTable::read_json(const std::string& file) {
  std::ifstream in(file);
  MethodTable table;
  try {
    for (const auto& row : nlohmann::json::parse(in)) {
      table.add(row.at("method"), {.seconds = row.at("seconds"),
                                   .bytes = row.at("bytes_sent"),
                                   .stalled = row.at("seconds_blocked"),
                                   .loss = row.at("held_out_loss"),
                                   .interval = row.at("local_steps")});
    }
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("cannot read rows of `tutti bench local-sgd` from " + file + ": " + error.what());
  }
  if (table.rows_.empty()) throw UsageError("there are no rows in " + file);
  return table;
}

}  // namespace tutti::bench
