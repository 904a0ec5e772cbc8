#include "all_reduce/rank.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
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

  Results take(const std::vector<std::unique_ptr<AllReducer>>& reducers) {
    for (const auto& dtype : options_.dtypes) {
      for (const auto bytes : options_.sizes) take_row(reducers, dtype, bytes);
    }
    return std::move(results_);
  }

 private:
  void take_row(const std::vector<std::unique_ptr<AllReducer>>& reducers, const std::string& dtype,
                std::int64_t bytes) {
    const auto type = dtype_named(dtype);
    const auto elements = bytes / static_cast<std::int64_t>(c10::elementSize(type));
    std::vector<Entry> entries;
    for (const auto& reducer : reducers) {
      entries.push_back({.reducer = reducer.get(), .tensor = reducer->allocate(elements, type)});
      check(entries.back(), dtype + ", " + std::to_string(bytes) + " bytes");
      entries.back().calls = calls_for(time_of(entries.back()));
    }
    const int bare_calls = calls_for(on_rank_0([&] { return time_of_bare_sum(bytes, control_.size(), 1); }));

    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const Entry& entry : entries) add(entry.reducer->name(), dtype, bytes, time_of(entry));
      add(bare_sum, dtype, bytes, on_rank_0([&] { return time_of_bare_sum(bytes, control_.size(), bare_calls); }));
      std::ranges::reverse(entries);
    }
    if (control_.rank() == 0) std::cerr << dtype << ", " << bytes << " bytes: done\n";
  }

  /// The time of one call on the slowest rank, in microseconds.
  double time_of(const Entry& entry) const {
    using Clock = std::chrono::steady_clock;
    control_.barrier().wait();
    entry.reducer->sum(entry.tensor);  // the ranks leave a barrier at different times
    const auto start = Clock::now();
    for (int call = 0; call < entry.calls; ++call) entry.reducer->sum(entry.tensor);
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    double slowest = 0;
    for (const auto& text : control_.all_gather_object(std::to_string(elapsed.count()))) {
      slowest = std::max(slowest, std::stod(text));
    }
    return slowest / entry.calls;
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

  void add(const std::string& system, const std::string& dtype, std::int64_t bytes, double microseconds) {
    results_.row(all_reduce_labels(system, control_.size(), dtype, bytes)).values.push_back(microseconds);
  }

  const AllReduceOptions& options_;
  Communicator control_;
  Results results_{};
};

}  // namespace

int run_all_reduce_rank(const AllReduceOptions& options, const Environment& environment) {
  at::set_num_threads(1);
  Report report;
  const auto fast = Communicator::connect(environment);
  const auto slow = Communicator::connect(environment, {.backend = "gloo"});
  const auto group = make_gloo_group(fast, environment);
  const auto reducers = make_all_reducers(fast, slow, group);
  auto results = Measurement(options, slow.duplicate("control")).take(reducers);
  results.notes.push_back("tutti: " + fast.backend_name() + " on " + counted(fast.size(), "rank"));

  int code = 0;
  if (fast.rank() == 0) {
    if (options.results.empty()) {
      code = report_all_reduce(report, results, options);
    } else {
      write_results(options.results, results);
    }
  }
  fast.barrier().wait();  // rank 0 serves the group's store, so all ranks must finish first
  return code;
}

}  // namespace tutti::bench
