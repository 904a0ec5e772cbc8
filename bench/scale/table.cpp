#include "scale/table.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/spread.h"

namespace tutti::bench {
namespace {

std::string cell(const std::vector<double>& values) {
  const auto [median, least, most] = spread_of(values);
  std::string text = number(median, 1);
  if (values.size() > 1) text += " (" + number(least, 1) + "-" + number(most, 1) + ")";
  return text;
}

std::string in_mebibytes(std::int64_t bytes) {
  return number(static_cast<double>(bytes) / (1 << 20), 1);
}

double median_of(const std::vector<double>& values) {
  return spread_of(values).median;
}

}  // namespace

std::string scale_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine) {
  std::ostringstream out;
  const std::string nodes =
      options.nodes == 1 ? ""
                         : " on " + counted(options.nodes, "node") + " at " + options.rate + " (network namespaces)";
  out << "Ranks of one machine" << nodes << " meet, take " << counted(options.steps, "optimizer step")
      << " of a toy model"
      << (options.gradients == 0 ? "" : " with " + in_mebibytes(options.gradients) + " MiB of gradients")
      << " and leave" << (options.engine == "auto" ? "" : ", engine " + options.engine) << ".\n\n"
      << "| ranks | seconds | CPU s | × that of the row above | CPU s without meeting | threads | descriptors | page "
         "tables, MiB |\n"
      << "|---|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ScaleRow& row = rows[i];
    const std::string growth = i == 0 ? "" : number(median_of(row.cpu) / median_of(rows[i - 1].cpu), 2);
    out << "| " << row.ranks << " | " << cell(row.seconds) << " | " << cell(row.cpu) << " | " << growth << " | "
        << cell(row.cpu_alone) << " | " << row.most.threads << " (" << row.most_alone.threads << ") | "
        << row.most.descriptors << " (" << row.most_alone.descriptors << ") | " << in_mebibytes(row.most.page_tables)
        << " (" << in_mebibytes(row.most_alone.page_tables) << ") |\n";
  }
  out << "\n- threads, descriptors and page tables: the most that any rank has while it trains, in brackets without "
         "meeting\n- "
      << describe(machine) << '\n';
  return out.str();
}

std::string scale_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine) {
  auto json = nlohmann::ordered_json::array();
  for (const ScaleRow& row : rows) {
    const auto add = [&](const char* figure, const std::vector<double>& values, const char* unit) {
      const auto [median, least, most] = spread_of(values);
      json.push_back({{"ranks", row.ranks},
                      {"figure", figure},
                      {"median", median},
                      {"min", least},
                      {"max", most},
                      {"unit", unit},
                      {"repeats", values.size()},
                      {"steps", options.steps},
                      {"gradients", options.gradients},
                      {"engine", options.engine},
                      {"nodes", options.nodes},
                      {"rate", options.rate},
                      {"libtorch", machine.libtorch},
                      {"commit", machine.commit}});
    };
    add("time", row.seconds, "s");
    add("CPU", row.cpu, "s");
    add("CPU without meeting", row.cpu_alone, "s");
    add("threads", {static_cast<double>(row.most.threads)}, "1");
    add("threads without meeting", {static_cast<double>(row.most_alone.threads)}, "1");
    add("descriptors", {static_cast<double>(row.most.descriptors)}, "1");
    add("descriptors without meeting", {static_cast<double>(row.most_alone.descriptors)}, "1");
    add("page tables", {static_cast<double>(row.most.page_tables)}, "B");
    add("page tables without meeting", {static_cast<double>(row.most_alone.page_tables)}, "B");
  }
  return json.dump(2) + "\n";
}

}  // namespace tutti::bench
