#pragma once
// The flight records of a job: their folder, and the launcher's report from them when a rank fails.
#include <filesystem>
#include <memory>
#include <string>

#include "flight/job_folder.h"

namespace tutti {

/// The folder is TUTTI_FLIGHT_RECORDS if the user sets it, else a job folder that is removed at the end unless a rank
/// failed. An empty variable disables the records. Logs a warning if the folder cannot be created.
class FlightRecords {
 public:
  explicit FlightRecords(const std::string& job);

  /// Empty: ranks keep no records.
  const std::filesystem::path& folder() const { return folder_; }
  /// The diagnosis for the report of a failure; empty if there is no record. Keeps the folder after the job.
  std::string describe_failure();

 private:
  std::unique_ptr<flight::JobFolder> job_folder_;
  std::filesystem::path folder_;
};

}  // namespace tutti
