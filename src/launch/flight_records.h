#pragma once
// The flight records that the ranks of a job keep: where, and what the launcher says of them when a rank fails.
#include <filesystem>
#include <memory>
#include <string>

#include "flight/job_folder.h"

namespace tutti {

/// The folder is the one that the user names with TUTTI_FLIGHT_RECORDS, or one of the job's own, which goes with the
/// job unless a rank failed. An empty variable means none. Where none can be made a warning says so.
class FlightRecords {
 public:
  explicit FlightRecords(const std::string& job);

  /// Empty: none are kept.
  const std::filesystem::path& folder() const { return folder_; }
  /// What the records say, for the report of a failure; empty where no rank has left one. The folder then stays.
  std::string describe_failure();

 private:
  std::unique_ptr<flight::JobFolder> job_folder_;
  std::filesystem::path folder_;
};

}  // namespace tutti
