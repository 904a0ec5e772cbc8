#include "plan/script.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "plan/traffic.h"

namespace tutti::plan {
namespace {

constexpr double ms_per_us = 1e-3;
constexpr double bytes_per_ms_of_gb_per_s = 1e6;
constexpr double bytes_per_ms_of_gbit = 125e3;
/// The payload of Ethernet: 1448 bytes of a full TCP packet of 1538 bytes.
constexpr double payload = 1448.0 / 1538.0;

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
    std::vector<int> results;
    for (std::size_t i = 0; i < work_.buckets.size(); ++i) {
      const double bytes = work_.buckets[i].bytes;
      versions_at_once_.push_back(half_of_sum(bytes, ranks, outside));
      results.push_back(half_of_sum(bytes, ranks, outside));
      script_.adding.push_back({.bucket = static_cast<int>(i),
                                .message = versions_at_once_.back(),
                                .cpu_ms = versions_sum_ms(bytes),
                                .sends = results.back()});
    }
    for (const int result : results) script_.adding.push_back({.message = result});
  }

  // While one bucket is summed between nodes, the next is summed inside them.
  void sums_hierarchically() {
    struct Between {
      int versions;
      int results;
      double bytes;
    };
    std::vector<Between> between;
    const auto reduce = [&](const Between& oldest) {
      script_.adding.push_back(
          {.message = oldest.versions, .cpu_ms = versions_sum_ms(oldest.bytes), .sends = oldest.results});
    };
    for (std::size_t i = 0; i < work_.buckets.size(); ++i) {
      const double slice = work_.buckets[i].bytes / layout_.ranks_per_node;
      const double share = messages_of(schedule_for(layout_.nodes, slice), layout_.nodes).share;
      between.push_back({.versions = half_of_sum(slice, layout_.nodes, share),
                         .results = half_of_sum(slice, layout_.nodes, share),
                         .bytes = slice});
      script_.adding.push_back({.bucket = static_cast<int>(i),
                                .pause_ms = node_barrier_ms(),
                                .cpu_ms = node_sum_ms(i) / 2,
                                .sends = between.back().versions});
      if (i > 0) reduce(between[i - 1]);
    }
    if (!between.empty()) reduce(between.back());
    for (std::size_t i = 0; i < between.size(); ++i) {
      script_.adding.push_back({.message = between[i].results, .cpu_ms = node_sum_ms(i) / 2});
      script_.adding.push_back({.pause_ms = node_barrier_ms()});
    }
  }

  /// Half of a sum of `bytes` over `members`. The fraction `outside` is sent to other nodes.
  int half_of_sum(double bytes, int members, double outside) {
    if (!charged_.between) return message({});
    const Messages messages = messages_of(schedule_for(members, bytes), members);
    const double per_ms = link_.gbit * bytes_per_ms_of_gbit * payload / layout_.ranks_per_node;
    return message({.link_ms = bytes * outside / per_ms,
                    .cpu_ms = bytes * messages.share / (machine_.message_gb_per_s * bytes_per_ms_of_gb_per_s) +
                              messages.sent * machine_.message_cpu_us * ms_per_us,
                    .latency_ms = messages.steps * message_latency_ms()});
  }

  /// The number of rounds of a small all-gather.
  int steps_of_exchange() const {
    return exchange_steps(backend_for(layout_) == BackendChoice::hierarchical ? layout_.nodes : layout_.ranks());
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
  double versions_sum_ms(double bytes) const {
    if (!charged_.between) return 0;
    return bytes / 2 / (machine_.sum_gb_per_s * bytes_per_ms_of_gb_per_s);
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
