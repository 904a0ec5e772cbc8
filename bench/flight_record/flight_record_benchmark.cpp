#include "flight_record/flight_record_benchmark.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>

#include "command/words.h"
#include "flight/recorder.h"
#include "report/spread.h"
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

int run_flight_record_benchmark(const std::vector<std::string>& words) {
  int repeats = 7;
  int entries = 1'000'000;
  CLI::App app("Times the recording of an operation in the flight record: called, started, completed.");
  app.name("tutti bench flight-record");
  app.add_option("--repeats", repeats, "How often")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--entries", entries, "Operations in a repeat")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  if (!parse_words(app, words)) return 0;
  const Machine machine = describe_machine();
  const test::TemporaryFolder folder;
  const auto recorder = flight::Recorder::create(folder.path(), {});
  std::vector<double> times(static_cast<std::size_t>(repeats));
  std::ranges::generate(times, [&] { return nanoseconds_an_entry(*recorder, entries); });
  const Spread spread = spread_of(times);
  std::cout << "An operation in the flight record: " << number(spread.median, 0) << " ns (" << number(spread.least, 0)
            << "-" << number(spread.most, 0) << "), median of " << repeats << " times " << entries << ".\n\n"
            << describe(machine) << '\n';
  return 0;
}

}  // namespace tutti::bench
