#pragma once
// The folder where the ranks of one `tutti launch` keep their flight records.
#include <filesystem>
#include <optional>
#include <string>

#include "core/file_descriptor.h"

namespace tutti::flight {

/// Made with the job and removed with it, unless keep() was called. The newest few that were kept stay; older ones go
/// when the next is made.
class JobFolder {
 public:
  /// `name` is that of the job. Throws std::system_error where no folder can be had.
  explicit JobFolder(const std::string& name);
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// It outlives the job: something went wrong.
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  FileDescriptor lock_;  // while it is held nobody takes the folder for an old one
  bool kept_ = false;
};

/// Whether `folder` is one that some launcher of this user made for its own job.
bool is_job_folder(const std::filesystem::path& folder);

/// The newest job folder of this user; nullopt where there is none.
std::optional<std::filesystem::path> newest_job_folder();

}  // namespace tutti::flight
