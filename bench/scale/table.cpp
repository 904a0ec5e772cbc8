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

/// The ratio to the previous row of the same kind, or empty for the first one.
std::string growth(const std::vector<ScaleRow>& rows, std::size_t row, std::vector<double> ScaleRow::*figure) {
  for (std::size_t before = row; before-- > 0;) {
    if (rows[before].alone == rows[row].alone)
      return number(median_of(rows[row].*figure) / median_of(rows[before].*figure), 2);
  }
  return "";
}

}  // namespace

std::string scale_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine) {
  std::ostringstream out;
  const std::string nodes =
      options.nodes == 1 ? ""
                         : " on " + counted(options.nodes, "node") + " at " + options.rate + " (network namespaces)";
  const std::string forked = options.forked ? ", forked from one process of each node," : "";
  out << "Ranks of one machine" << nodes << forked << " connect, take " << counted(options.steps, "optimizer step")
      << " of a toy model"
      << (options.gradients == 0 ? "" : " with " + in_mebibytes(options.gradients) + " MiB of gradients") << " and exit"
      << (options.backend == "auto" ? "" : ", backend " + options.backend) << ".\n\n"
      << "| ranks | seconds | CPU s | × | in the kernel | in main() | × | threads | descriptors | page tables, MiB |\n"
      << "|---|---|---|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ScaleRow& row = rows[i];
    out << "| " << row.ranks << (row.alone ? ", not connected" : "") << " | " << cell(row.seconds) << " | "
        << cell(row.cpu) << " | " << growth(rows, i, &ScaleRow::cpu) << " | " << cell(row.cpu_in_kernel) << " | "
        << cell(row.cpu_in_main) << " | " << growth(rows, i, &ScaleRow::cpu_in_main) << " | " << row.most.threads
        << " | " << row.most.descriptors << " | " << in_mebibytes(row.most.page_tables) << " |\n";
  }
  out << "\n- ×: ratio to the previous number of ranks\n"
      << (options.forked ? "- in main(): without LibTorch's start, which happens once on a node\n"
                         : "- in main(): without LibTorch's start and end in each process\n")
      << "- not connected: the same processes do the same work, and exit when all have done it\n"
         "- threads, descriptors and page tables: the maximum of all ranks, during training\n- "
      << describe(machine) << '\n';
  return out.str();
}

std::string scale_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine) {
  auto json = nlohmann::ordered_json::array();
  for (const ScaleRow& row : rows) {
    const auto add = [&](const std::string& figure, const std::vector<double>& values, const char* unit) {
      const auto [median, least, most] = spread_of(values);
      json.push_back({{"ranks", row.ranks},
                      {"figure", row.alone ? figure + " not connected" : figure},
                      {"median", median},
                      {"min", least},
                      {"max", most},
                      {"unit", unit},
                      {"repeats", values.size()},
                      {"steps", options.steps},
                      {"gradients", options.gradients},
                      {"backend", options.backend},
                      {"nodes", options.nodes},
                      {"forked", options.forked},
                      {"rate", options.rate},
                      {"libtorch", machine.libtorch},
                      {"commit", machine.commit}});
    };
    add("time", row.seconds, "s");
    add("CPU", row.cpu, "s");
    add("CPU in the kernel", row.cpu_in_kernel, "s");
    add("CPU in main", row.cpu_in_main, "s");
    add("threads", {static_cast<double>(row.most.threads)}, "1");
    add("descriptors", {static_cast<double>(row.most.descriptors)}, "1");
    add("page tables", {static_cast<double>(row.most.page_tables)}, "B");
  }
  return json.dump(2) + "\n";
}

}  // namespace tutti::bench
