#pragma once
// The flight records of a job: their folder, and the launcher's report from them when a rank fails.
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "flight/job_folder.h"
#include "flight/rank_record.h"

namespace tutti {

/// The folder is TUTTI_FLIGHT_RECORDS if the user sets it, else a job folder that is removed at the end unless a rank
/// failed. An empty variable disables the records.
class FlightRecords {
 public:
  /// `job` is the job's name. Removes the records of an earlier job, which would be reported as those of this job.
  /// Restarts of this job use one object. Logs a warning if the folder cannot be created.
  explicit FlightRecords(const std::string& job);

  /// Empty: ranks keep no records.
  const std::filesystem::path& folder() const { return folder_; }
  /// The ranks whose records of this attempt hold a failed call. Keeps the folder after the job.
  std::set<int> ranks_with_failed_calls(int attempt);
  /// The diagnosis for the report of a failure. Empty if there is no record, or no call failed or is in flight: the
  /// records then do not explain the failure.
  std::string describe_failure(int attempt) const;

 private:
  std::vector<flight::RankRecord> records(int attempt) const;

  std::unique_ptr<flight::JobFolder> job_folder_;
  std::filesystem::path folder_;
};

}  // namespace tutti
