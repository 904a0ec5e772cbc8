#include "plan/script.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "plan/traffic.h"

namespace tutti::plan {
namespace {

constexpr double ms_per_us = 1e-3;
constexpr double bytes_per_ms_of_gb_per_s = 1e6;
constexpr double bytes_per_ms_of_gbit = 125e3;
/// The payload of Ethernet: 1448 bytes of a full TCP packet of 1538 bytes.
constexpr double payload = 1448.0 / 1538.0;

/// The part of a tensor that each step of the first half of a sum sends, of all that the half sends.
std::vector<double> step_fractions(Schedule schedule, int steps) {
  if (schedule == Schedule::direct) return {1};
  std::vector<double> fractions;
  const double all = 1 - std::exp2(-steps);
  for (int step = 1; step <= steps; ++step) fractions.push_back(std::exp2(-step) / all);
  return fractions;
}

class Writer {
 public:
  Writer(const Machine& machine, const Link& link, const Work& work, const Layout& layout, const Charged& charged)
      : machine_(machine), link_(link), work_(work), layout_(layout), charged_(charged) {}

  Script write() {
    const BackendChoice backend = backend_for(layout_);
    const bool exchanges = backend != BackendChoice::none;
    std::vector<int> opening;
    if (exchanges) opening.push_back(header(steps_of_exchange()));
    if (exchanges) script_.adding.push_back({.message = opening.front()});
    if (backend == BackendChoice::shared_memory) sums_in_node();
    if (backend == BackendChoice::messages) sums_by_messages();
    if (backend == BackendChoice::hierarchical) sums_hierarchically();
    compute(opening);
    if (exchanges) close();
    return std::move(script_);
  }

 private:
  // Runs last, because it needs the messages of all buckets.
  void compute(std::vector<int> leaves_first) {
    double done = 0;
    for (std::size_t i = 0; i < work_.buckets.size(); ++i) {
      const double ready = std::max(done, work_.buckets[i].ready);
      Computing part{.cpu_ms = (ready - done) * work_.backward_ms, .completes = static_cast<int>(i), .sends = {}};
      part.sends.swap(leaves_first);
      if (i < versions_at_once_.size()) part.sends.push_back(versions_at_once_[i]);
      script_.computing.push_back(std::move(part));
      done = ready;
    }
    script_.computing.push_back({.cpu_ms = (1 - done) * work_.backward_ms, .completes = -1, .sends = leaves_first});
  }

  // The first round of the trailer is sent with the last gradient, the rest after the last sum.
  void close() {
    const int steps = steps_of_exchange();
    const int first = header(1);
    script_.computing.back().sends.push_back(first);
    script_.adding.push_back({.message = first});
    if (steps < 2) return;
    const int others = header(steps - 1);
    script_.adding.back().sends = others;
    script_.adding.push_back({.message = others});
  }

  void sums_in_node() {
    for (std::size_t i = 0; i < work_.buckets.size(); ++i) {
      script_.adding.push_back(
          {.bucket = static_cast<int>(i), .pause_ms = node_barrier_ms(), .cpu_ms = node_sum_ms(i)});
    }
    script_.adding.push_back({.pause_ms = node_barrier_ms()});
  }

  void sums_by_messages() {
    const int ranks = layout_.ranks();
    const double outside = static_cast<double>(ranks - layout_.ranks_per_node) / ranks;
    std::vector<Sum> sums;
    for (std::size_t i = 0; i < work_.buckets.size(); ++i) {
      sums.push_back(sum_of(work_.buckets[i].bytes, ranks, outside));
      versions_at_once_.push_back(sums[i].versions.front());
      script_.adding.push_back({.bucket = static_cast<int>(i)});
      reduce(sums[i]);
    }
    for (const Sum& sum : sums) receive_results(sum);
  }

  // While one bucket is summed between nodes, the next is summed inside them.
  void sums_hierarchically() {
    std::vector<Sum> between;
    for (std::size_t i = 0; i < work_.buckets.size(); ++i) {
      const double slice = work_.buckets[i].bytes / layout_.ranks_per_node;
      const double share = messages_of(schedule_for(layout_.nodes, slice), layout_.nodes).share;
      between.push_back(sum_of(slice, layout_.nodes, share));
      script_.adding.push_back({.bucket = static_cast<int>(i),
                                .pause_ms = node_barrier_ms(),
                                .cpu_ms = node_sum_ms(i) / 2,
                                .sends = between.back().versions.front()});
      if (i > 0) reduce(between[i - 1]);
    }
    if (!between.empty()) reduce(between.back());
    for (std::size_t i = 0; i < between.size(); ++i) {
      receive_results(between[i]);
      script_.adding.push_back({.cpu_ms = node_sum_ms(i) / 2});
      script_.adding.push_back({.pause_ms = node_barrier_ms()});
    }
  }

  /// A sum between nodes. Each half has a message for each step of the schedule.
  struct Sum {
    std::vector<int> versions;
    std::vector<int> results;
    std::vector<double> additions_ms;  // after each of `versions`
  };

  /// A sum of `bytes` over `members`. Each of its halves sends the fraction `outside` to other nodes.
  Sum sum_of(double bytes, int members, double outside) {
    const Schedule schedule = schedule_for(members, bytes);
    const Messages messages = messages_of(schedule, members);
    const std::vector<double> fractions = step_fractions(schedule, messages.steps);
    const double per_ms = link_.gbit * bytes_per_ms_of_gbit * payload / layout_.ranks_per_node;
    const double cpu_ms = bytes * messages.share / (machine_.message_gb_per_s * bytes_per_ms_of_gb_per_s);
    const double message_cpu_ms = machine_.message_cpu_us * ms_per_us * messages.sent / messages.steps;
    Sum sum;
    const auto step = [&](double fraction) {
      return message(charged_.between ? Message{.link_ms = fraction * bytes * outside / per_ms,
                                                .cpu_ms = fraction * cpu_ms + message_cpu_ms,
                                                .latency_ms = message_latency_ms()}
                                      : Message{});
    };
    for (const double fraction : fractions) {
      sum.versions.push_back(step(fraction));
      sum.additions_ms.push_back(fraction * versions_sum_ms(schedule, bytes));
    }
    // The steps of the second half are those of the first in reverse.
    std::for_each(fractions.rbegin(), fractions.rend(),
                  [&](double fraction) { sum.results.push_back(step(fraction)); });
    return sum;
  }

  // The adding thread takes the steps of one sum after another. Of the next sum only the first message is in flight.
  void reduce(const Sum& sum) {
    for (std::size_t i = 0; i < sum.versions.size(); ++i) {
      const int next = i + 1 < sum.versions.size() ? sum.versions[i + 1] : sum.results.front();
      script_.adding.push_back({.message = sum.versions[i], .cpu_ms = sum.additions_ms[i], .sends = next});
    }
  }

  void receive_results(const Sum& sum) {
    for (std::size_t i = 0; i < sum.results.size(); ++i) {
      const int next = i + 1 < sum.results.size() ? sum.results[i + 1] : -1;
      script_.adding.push_back({.message = sum.results[i], .sends = next});
    }
  }

  /// The number of rounds of a small all-gather.
  int steps_of_exchange() const {
    const BackendChoice backend = backend_for(layout_);
    if (backend == BackendChoice::shared_memory) return 1;
    return exchange_steps(backend == BackendChoice::hierarchical ? layout_.nodes : layout_.ranks());
  }

  int header(int steps) {
    if (!charged_.headers) return message({});
    const double in_node = machine_.node_barrier_us * ms_per_us;
    if (layout_.nodes == 1) return message({.latency_ms = in_node});
    // The ranks of a node synchronize before and after the node leader's messages.
    const double around = backend_for(layout_) == BackendChoice::hierarchical ? 2 * in_node : 0;
    return message(
        {.cpu_ms = steps * machine_.message_cpu_us * ms_per_us, .latency_ms = steps * message_latency_ms() + around});
  }

  int message(const Message& what) {
    script_.messages.push_back(what);
    return static_cast<int>(script_.messages.size()) - 1;
  }

  double message_latency_ms() const { return (link_.latency_us + machine_.message_us) * ms_per_us; }
  double node_barrier_ms() const { return charged_.node ? machine_.node_barrier_us * ms_per_us : 0; }

  /// Bucket i: a rank reads its slice from all ranks and writes the sum to all ranks.
  double node_sum_ms(std::size_t i) const {
    if (!charged_.node) return 0;
    return work_.buckets[i].bytes / (machine_.sum_gb_per_s * bytes_per_ms_of_gb_per_s);
  }
  /// The same for contributions that arrive as messages, which are only read.
  double versions_sum_ms(Schedule schedule, double bytes) const {
    if (!charged_.between) return 0;
    const double direct_ms = bytes / 2 / (machine_.sum_gb_per_s * bytes_per_ms_of_gb_per_s);
    return schedule == Schedule::halving ? direct_ms + halving_additions_us(bytes) * ms_per_us : direct_ms;
  }

  const Machine& machine_;
  const Link& link_;
  const Work& work_;
  const Layout& layout_;
  Charged charged_;
  Script script_;
  std::vector<int> versions_at_once_;  // by bucket: the message that is sent when it is complete
};

}  // namespace

Script script_of(const Machine& machine, const Link& link, const Work& work, const Layout& layout,
                 const Charged& charged) {
  return Writer(machine, link, work, layout, charged).write();
}

}  // namespace tutti::plan
