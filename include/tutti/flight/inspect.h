#pragma once
// Reading the flight records of a job: what each rank called last, and what that says together.
//
// `tutti launch` lets its ranks keep such records, in memory of the machine that outlives them; other launchers do
// where TUTTI_FLIGHT_RECORDS names a folder. A job may still run while it is looked at.
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti {

/// What is looked at.
struct InspectOptions {
  /// Folders with records; those of several nodes together are one job. Empty: the newest job that `tutti launch` of
  /// this user started on this machine.
  std::vector<std::filesystem::path> folders = {};
  /// How many operations of each rank are listed besides, the last ones.
  std::size_t last_operations = 0;
};

/// A few lines: whose processes run, who waits where and for how long, who did not come and what that rank did last,
/// the first operation that differs between ranks. Nothing is changed. No rank takes part. Throws UsageError where
/// there is no record, or a damaged one.
std::string inspect(const InspectOptions& options = {});

}  // namespace tutti
