#include "all_reduce/rank.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "all_reduce/bare_sum.h"
#include "all_reduce/reducers.h"
#include "all_reduce/table.h"
#include "report/statistics.h"
#include "sync/gloo_group.h"

namespace tutti::bench {
namespace {

constexpr int fewest_calls = 3;
constexpr int most_calls = 20'000;

at::ScalarType dtype_named(const std::string& name) {
  static const std::vector<std::pair<std::string, at::ScalarType>> dtypes{
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  return std::ranges::find(dtypes, name, &std::pair<std::string, at::ScalarType>::first)->second;
}

/// One cell of a table: its reducer, its tensor and the number of calls in a repeat.
struct Entry {
  AllReducer* reducer = nullptr;
  at::Tensor tensor;
  int calls = 1;
};

class Measurement {
 public:
  /// `control` synchronizes the ranks between measurements.
  Measurement(const AllReduceOptions& options, Communicator control)
      : options_(options), control_(std::move(control)) {}

  Results take(const AllReducers& reducers) {
    for (const auto& dtype : options_.dtypes) {
      for (const auto bytes : options_.sizes) take_row(reducers, dtype, bytes);
    }
    return std::move(results_);
  }

 private:
  void take_row(const AllReducers& reducers, const std::string& dtype, std::int64_t bytes) {
    const auto type = dtype_named(dtype);
    const auto elements = bytes / static_cast<std::int64_t>(c10::elementSize(type));
    std::vector<Entry> entries;
    for (const auto& reducer : reducers) {
      entries.push_back({.reducer = reducer.get(), .tensor = reducer->allocate(elements, type)});
      check(entries.back(), dtype + ", " + std::to_string(bytes) + " bytes");
      entries.back().calls = calls_for(cost_of(entries.back()).microseconds);
    }
    const bool one_node = options_.place.nodes == 1;
    const int bare_calls =
        one_node ? calls_for(on_rank_0([&] { return time_of_bare_sum(bytes, control_.size(), 1); })) : 0;

    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const Entry& entry : entries) add(entry.reducer->name(), dtype, bytes, cost_of(entry));
      if (one_node) {
        const auto bare = on_rank_0([&] { return time_of_bare_sum(bytes, control_.size(), bare_calls); });
        add(bare_sum, dtype, bytes, {.microseconds = bare});
      }
      std::ranges::reverse(entries);
    }
    if (control_.rank() == 0) std::cerr << dtype << ", " << bytes << " bytes: done\n";
  }

  Cost cost_of(const Entry& entry) const {
    using Clock = std::chrono::steady_clock;
    control_.barrier().wait();
    entry.reducer->sum(entry.tensor);  // the ranks leave a barrier at different times
    const auto start = Clock::now();
    const std::clock_t cpu_before = std::clock();
    for (int call = 0; call < entry.calls; ++call) entry.reducer->sum(entry.tensor);
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    const auto cpu = static_cast<double>(std::clock() - cpu_before) * 1e9 / CLOCKS_PER_SEC;
    return mean_cost({.microseconds = elapsed.count() / entry.calls,
                      .cpu_per_byte = cpu / entry.calls / static_cast<double>(entry.tensor.nbytes())});
  }

  /// Combines the costs of the ranks.
  Cost mean_cost(const Cost& of_rank) const {
    Cost mean;
    const auto text = std::to_string(of_rank.microseconds) + ' ' + std::to_string(of_rank.cpu_per_byte);
    for (const auto& received : control_.all_gather_object(text)) {
      std::istringstream in(received);
      Cost cost;
      in >> cost.microseconds >> cost.cpu_per_byte;
      mean.microseconds = std::max(mean.microseconds, cost.microseconds);
      mean.cpu_per_byte += cost.cpu_per_byte / control_.size();
    }
    return mean;
  }

  /// Runs `measure` on rank 0 while the other ranks wait, and returns its result on all ranks.
  template <typename Measure>
  double on_rank_0(const Measure& measure) const {
    control_.barrier().wait();
    const std::string text = control_.rank() == 0 ? std::to_string(measure()) : "";
    return std::stod(control_.broadcast_object(text));
  }

  int calls_for(double microseconds) const {
    const double calls = 1000.0 * options_.milliseconds / std::max(microseconds, 1e-3);
    return static_cast<int>(std::clamp(std::ceil(calls), double{fewest_calls}, double{most_calls}));
  }

  /// Sums a different value from each rank once and checks it. Leaves zeros, so that further sums do not overflow.
  void check(Entry& entry, const std::string& what) {
    const int size = control_.size();
    entry.tensor.fill_(control_.rank() + 1);
    entry.reducer->sum(entry.tensor);
    const double expected = entry.reducer->scale() * size * (size + 1) / 2;
    const bool right = (entry.tensor == expected).all().item<bool>();
    if (!right) results_.faults.push_back(entry.reducer->name() + ", " + what + ": the sum is wrong");
    control_.barrier().wait();  // no rank reads another rank's memory after this
    entry.tensor.zero_();
  }

  void add(const std::string& system, const std::string& dtype, std::int64_t bytes, const Cost& cost) {
    add_cost(results_, system, control_.size(), dtype, bytes, cost);
  }

  const AllReduceOptions& options_;
  Communicator control_;
  Results results_{};
};

struct Systems {
  AllReducers reducers{};
  std::vector<std::string> notes{};
};

Systems connect_systems(const AllReduceOptions& options, const Communicator& control, const Environment& environment) {
  Systems systems;
  std::set<std::string> connected;
  for (const auto& backend : options.backends) {
    const auto communicator = Communicator::connect(environment, {.backend = backend});
    // On two nodes with one rank each, the default backend is one that has a name.
    if (!connected.insert(communicator.backend_name()).second) continue;
    if (backend == "auto") {
      systems.notes.push_back("tutti: " + communicator.backend_name() + " on " + counted(control.size(), "rank"));
    }
    std::ranges::move(make_tutti_reducers(communicator, backend), std::back_inserter(systems.reducers));
  }
  if (has_gloo_headers()) {
    systems.reducers.push_back(make_c10d_reducer(make_gloo_group(control, environment)));
  } else {
    systems.notes.push_back("no column c10d Gloo: " + no_gloo_headers());
  }
  systems.reducers.push_back(make_plain_socket_reducer(control, environment));
  return systems;
}

}  // namespace

int run_all_reduce_rank(AllReduceOptions options, const Environment& environment) {
  at::set_num_threads(1);
  Report report;
  options.place.nodes = environment.num_nodes;
  const auto control = Communicator::connect(environment);
  Systems systems = connect_systems(options, control, environment);
  auto results = Measurement(options, control).take(systems.reducers);
  results.notes.insert(results.notes.end(), systems.notes.begin(), systems.notes.end());

  int code = 0;
  if (control.rank() == 0) {
    if (options.results.empty()) {
      code = report_all_reduce(report, results, options);
    } else {
      write_results(options.results, results);
    }
  }
  control.barrier().wait();  // rank 0 serves the group's store, so all ranks must finish first
  return code;
}

}  // namespace tutti::bench
