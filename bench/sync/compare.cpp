#include "sync/compare.h"

#include <algorithm>
#include <cstdio>
#include <ranges>
#include <utility>

#include "sync/guard.h"

namespace tutti::bench {
namespace {

struct Entry {
  System* system;
  Mode mode;
  Row row;
};

std::vector<Entry> entries_of(const std::vector<std::unique_ptr<System>>& systems, const Selection& selection,
                              std::int64_t gradient_bytes) {
  std::vector<Entry> entries;
  for (const auto& system : systems) {
    if (system->synchronizes() && !selection.has_system(system->name())) continue;
    for (const auto mode : system->modes()) {
      if (system->synchronizes() && !selection.has_mode(name_of(mode))) continue;
      const Labels labels{{"system", system->name()},
                          {"mode", name_of(mode)},
                          {"bytes", system->synchronizes() ? gradient_bytes : 0},
                          {"own_processes", false}};
      entries.push_back({system.get(), mode, Row{.labels = labels}});
    }
  }
  return entries;
}

}  // namespace

Results compare(const std::vector<std::unique_ptr<System>>& systems, System& reference, const Parameters& start,
                bool whole_windows, const Communicator& communicator, int repeats, const Selection& selection) {
  auto entries = entries_of(systems, selection, bytes_of(start));
  // Warm-up runs are not counted. Systems search for their settings here.
  Guard guard(communicator, start, reference.name(), reference.run(Mode::no_sync), whole_windows);

  for (const auto& system : systems) {
    if (selection.has_system(system->name())) system->tune();
  }

  for (int repeat = 1; repeat <= repeats; ++repeat) {
    for (auto& [system, mode, row] : entries) {
      const auto measurement = system->run(mode);
      const auto what = system->name() + " " + name_of(mode);
      if (system->synchronizes()) {
        guard.check(what, mode == Mode::accumulate, system->rounds_gradients(), measurement);
      }
      row.values.push_back(measurement.milliseconds_per_batch);
      if (communicator.rank() == 0) {
        std::fprintf(stderr, "%d/%d %-38s %8.1f ms per batch\n", repeat, repeats, what.c_str(),
                     measurement.milliseconds_per_batch);
      }
    }
    std::ranges::reverse(entries);
  }
  if (repeats % 2 == 1) std::ranges::reverse(entries);

  Results results{.faults = guard.faults()};
  for (auto& entry : entries) {
    entry.row.settings = entry.system->settings();
    results.rows.push_back(std::move(entry.row));
  }
  return results;
}

}  // namespace tutti::bench
