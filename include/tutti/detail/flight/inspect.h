#pragma once
// Reads the flight records of a job: the last operations of each rank, and what blocks them.
//
// Ranks under `tutti launch` keep records in shared memory that outlives them. Under other launchers they do if
// TUTTI_FLIGHT_RECORDS names a folder. The job may still run.
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti {

/// Options of inspect().
struct InspectOptions {
  /// Folders with the records of one job, one for each node. Empty: the newest job with records that this user
  /// started with `tutti launch` on this machine; the text then names its folder.
  std::vector<std::filesystem::path> folders = {};
  /// Number of last operations to list for each rank, in addition to the diagnosis.
  std::size_t last_operations = 0;
};

/// Returns a diagnosis of a few lines: which processes run, which ranks wait in which call and for how long, which
/// ranks did not enter it and what they called last, the first operation that differs between ranks. Read-only; the
/// ranks take no part. Throws UsageError if there is no record, or a damaged one.
std::string inspect(const InspectOptions& options = {});

}  // namespace tutti
