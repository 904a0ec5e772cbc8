#include "table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plan/units.h"

namespace tutti::plan {
namespace {

std::string number(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

/// Short ones with a digit behind the point.
std::string ms(double value) {
  return number(value, value < 100 ? 1 : 0);
}

double gradient_bytes(const Work& work) {
  double bytes = 0;
  for (const Bucket& bucket : work.buckets) bytes += bucket.bytes;
  return bytes;
}

bool is_assumed(const Link& link) {
  return std::ranges::any_of(known_links(), [&](const Link& known) {
    return known.name == link.name && known.latency_us == link.latency_us && known.gbit == link.gbit;
  });
}

std::string describe(const Link& link) {
  return link.name + ": " + number(link.latency_us, 0) + " µs, " + number(link.gbit, link.gbit < 1 ? 2 : 0) +
         " Gbit/s" + (is_assumed(link) ? ", assumed" : "");
}

std::string describe(const Machine& machine, bool measured) {
  return std::string(measured ? "measured here" : "assumed (--measure measures it)") +
         ": a barrier inside a node takes " + number(machine.node_barrier_us, 1) + " µs, a core adds " +
         number(machine.sum_gb_per_s, 1) + " GB/s, a message takes " + number(machine.message_us, 0) +
         " µs besides the link and " + number(machine.message_cpu_us, 0) + " µs of a core, which sends and receives " +
         number(machine.message_gb_per_s, 2) + " GB/s; " + number(machine.cores, machine.cores < 1 ? 2 : 0) +
         (machine.cores == 1 ? " core" : " cores") + " a node";
}

using Cells = std::vector<std::string>;

Cells cells_of(const Row& row) {
  const bool one_node = row.layout.nodes == 1;
  const Step& step = row.step;
  return {std::to_string(row.layout.nodes),
          std::to_string(row.layout.ranks()),
          one_node ? "" : row.link.name,
          ms(step.total_ms()),
          ms(step.computing_ms),
          ms(step.node_ms),
          one_node ? "" : ms(step.hidden_ms),
          one_node ? "" : ms(step.unhidden_ms),
          ms(step.headers_ms),
          ms(step.optimizer_ms),
          number(100 * step.efficiency(), 0) + " %"};
}

/// Markdown whose columns are aligned in a terminal too. Numbers are on the right of their columns.
std::string aligned(const Cells& headings, std::size_t text_column, const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < headings.size(); ++column) {
    widths.push_back(std::max(headings[column].size(), std::size_t{3}));
    for (const Cells& row : rows) widths.back() = std::max(widths.back(), row[column].size());
  }
  const auto line = [&](const Cells& cells) {
    std::string text = "|";
    for (std::size_t column = 0; column < cells.size(); ++column) {
      const std::string blanks(widths[column] - cells[column].size(), ' ');
      text += " " + (column == text_column ? cells[column] + blanks : blanks + cells[column]) + " |";
    }
    return text + "\n";
  };
  std::string text = line(headings) + "|";
  for (std::size_t column = 0; column < widths.size(); ++column) {
    const std::string dashes(widths[column] + 1, '-');
    text += column == text_column ? dashes + "-|" : dashes + ":|";
  }
  text += "\n";
  for (const Cells& row : rows) text += line(row);
  return text;
}

}  // namespace

std::string plan_markdown(const std::vector<Row>& rows, const PlanOptions& options, const Basis& basis) {
  std::ostringstream out;
  out << "Predicted milliseconds of an optimizer step: " << options.accumulation
      << (options.accumulation == 1 ? " micro-batch" : " micro-batches") << " a rank, "
      << number(gradient_bytes(basis.work) / 1e6, 1) << " MB of gradients exchanged "
      << (options.exchange == Exchange::once_a_step ? "once" : "in every pass") << ".\n\n";
  std::vector<Cells> cells;
  for (const Row& row : rows) cells.push_back(cells_of(row));
  constexpr std::size_t link_column = 2;
  out << aligned({"nodes", "ranks", "link", "step", "computing", "in node", "hidden", "exposed", "headers", "optimizer",
                  "efficiency"},
                 link_column, cells)
      << "\n"
         "step        the whole step: computing + in node + exposed + headers + optimizer\n"
         "computing   forward and backward passes of all micro-batches\n"
         "in node     sums of gradients between the ranks of a node\n"
         "hidden      sums between nodes during the backward pass; they do not lengthen the step\n"
         "exposed     sums between nodes after the backward pass; they lengthen the step\n"
         "headers     small messages before and after the sums, with which ranks compare what they do\n"
         "optimizer   the optimizer's step\n"
         "efficiency  the time of a step without communication, in percent of the step\n\n"
      << "- " << basis.model << ": " << ms(basis.work.forward_ms) << " ms forward, " << ms(basis.work.backward_ms)
      << " ms backward, " << ms(basis.work.optimizer_ms) << " ms optimizer\n"
      << "- " << describe(basis.machine, options.measure) << '\n';
  for (const Link& link : options.links) out << "- " << describe(link) << '\n';
  return out.str();
}

std::string plan_json(const std::vector<Row>& rows, const PlanOptions& options, const Basis& basis) {
  auto json = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const Step& step = row.step;
    const bool one_node = row.layout.nodes == 1;
    nlohmann::ordered_json object{{"nodes", row.layout.nodes},
                                  {"ranks", row.layout.ranks()},
                                  {"step_ms", step.total_ms()},
                                  {"computing_ms", step.computing_ms},
                                  {"node_ms", step.node_ms},
                                  {"hidden_ms", step.hidden_ms},
                                  {"unhidden_ms", step.unhidden_ms},
                                  {"headers_ms", step.headers_ms},
                                  {"optimizer_ms", step.optimizer_ms},
                                  {"efficiency", step.efficiency()},
                                  {"gradient_bytes", gradient_bytes(basis.work)},
                                  {"accumulation", options.accumulation},
                                  {"every_pass", options.exchange == Exchange::in_every_pass},
                                  {"measured_machine", options.measure}};
    object["link"] = one_node ? nlohmann::ordered_json() : nlohmann::ordered_json(row.link.name);
    object["latency_us"] = one_node ? nlohmann::ordered_json() : nlohmann::ordered_json(row.link.latency_us);
    object["gbit"] = one_node ? nlohmann::ordered_json() : nlohmann::ordered_json(row.link.gbit);
    json.push_back(std::move(object));
  }
  return json.dump(2) + "\n";
}

}  // namespace tutti::plan
