#include <algorithm>
#include <chrono>

#include "benchmarks.h"
#include "flight/recorder.h"
#include "report/report.h"
#include "report/statistics.h"
#include "support/temporary_folder.h"

namespace tutti::bench {
namespace {

/// Nanoseconds to record an operation: called, started and completed.
double nanoseconds_an_entry(flight::Recorder& recorder, int entries) {
  const auto begin = std::chrono::steady_clock::now();
  for (int number = 0; number < entries; ++number) {
    const auto entry = recorder.record_call({.text = "all_reduce(float32 [1024], sum, 'loss')",
                                             .communicator = "job/0-reducer",
                                             .operation = static_cast<std::uint64_t>(number),
                                             .bytes = 4096,
                                             .group_size = 8,
                                             .call_site = CallSite::here()});
    recorder.record_start(entry);
    recorder.record_end(entry, flight::EntryState::completed);
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  return time.count() / entries;
}

}  // namespace

int run_flight_record_benchmark(const Invocation& invocation) {
  CommonOptions options;
  int repeats = 7;
  int entries = 1'000'000;
  ArgumentParser parser("flight-record",
                        "Times the recording of an operation in the flight record: called, started, completed.",
                        options);
  parser.add_count("--repeats", repeats, "Repeats of the measurement");
  parser.add_count("--entries", entries, "Operations in a repeat");
  parser.parse_words(invocation);
  Report report;
  const test::TemporaryFolder folder;
  const auto recorder = flight::Recorder::create(folder.path(), {});
  std::vector<double> times(static_cast<std::size_t>(repeats));
  std::ranges::generate(times, [&] { return nanoseconds_an_entry(*recorder, entries); });
  report.add_text("An operation in the flight record: " + cell(times, 0) + " ns, median of " + std::to_string(repeats) +
                  " times " + std::to_string(entries) + ".");
  report.add_json({{"figure", "flight record"}, {"unit", "ns"}, {"repeats", repeats}, {"entries", entries}}, times);
  return report.finish(options.json);
}

}  // namespace tutti::bench
