#pragma once
// The folder of the flight records of one `tutti launch` job.
#include <filesystem>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace tutti::flight {

/// Creates the folder and removes it on destruction, unless keep() was called. The constructor also removes kept
/// folders of earlier jobs, except the newest few.
class JobFolder {
 public:
  /// `name` is the job's name. Throws std::system_error if it cannot create the folder.
  explicit JobFolder(const std::string& name);
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Keeps the folder after the job, for a later `tutti inspect`.
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  FileDescriptor lock_;  // marks the folder as in use, so that other launchers do not remove it
  bool kept_ = false;
};

/// Removes the records in `folder` that no process holds: those of an earlier job. Records that cannot be removed stay.
void remove_ended_records(const std::filesystem::path& folder);

/// True if `folder` is a job folder of this user.
bool is_job_folder(const std::filesystem::path& folder);

/// The job folders of this user that hold a record, newest first.
struct JobsWithRecords {
  std::vector<std::filesystem::path> running;  ///< a process of the job runs
  std::vector<std::filesystem::path> ended;
};
JobsWithRecords jobs_with_records();

}  // namespace tutti::flight
