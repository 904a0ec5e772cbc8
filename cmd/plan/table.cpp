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

void write_row(std::ostream& out, const Row& row) {
  const bool one_node = row.layout.nodes == 1;
  const Step& step = row.step;
  out << "| " << row.layout.nodes << " | " << row.layout.ranks() << " | " << (one_node ? "" : row.link.name) << " | "
      << ms(step.total_ms()) << " | " << ms(step.computing_ms) << " | " << ms(step.node_ms) << " | "
      << (one_node ? "" : ms(step.hidden_ms)) << " | " << (one_node ? "" : ms(step.unhidden_ms)) << " | "
      << ms(step.headers_ms) << " | " << ms(step.optimizer_ms) << " | " << number(100 * step.efficiency(), 0)
      << " % |\n";
}

}  // namespace

std::string plan_markdown(const std::vector<Row>& rows, const PlanOptions& options, const Basis& basis) {
  std::ostringstream out;
  out << "Predicted milliseconds of an optimizer step: " << options.accumulation
      << (options.accumulation == 1 ? " micro-batch" : " micro-batches") << " a rank, "
      << number(gradient_bytes(basis.work) / 1e6, 1) << " MB of gradients exchanged "
      << (options.exchange == Exchange::once_a_step ? "once" : "in every pass") << ".\n\n"
      << "| nodes | ranks | link | step | computing | sums in the node | between nodes, hidden | not hidden | headers "
         "| "
         "optimizer | efficiency |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Row& row : rows) write_row(out, row);
  out << "\n- hidden: what sums between nodes take while the backward pass goes on; it is no part of the step. "
         "Efficiency: the step without an exchange / the step\n"
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
