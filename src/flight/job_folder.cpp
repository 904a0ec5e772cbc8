#include "flight/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "flight/rank_record.h"

namespace tutti::flight {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_kept = 5;

// Prefers shared memory to disk: records are written often and read rarely.
fs::path folder_of_user() {
  const fs::path memory = "/dev/shm";
  const bool usable = ::access(memory.c_str(), W_OK | X_OK) == 0;
  return (usable ? memory : fs::temp_directory_path()) / ("tutti-" + std::to_string(::getuid()));
}

[[noreturn]] void throw_errno(const fs::path& path, int error) {
  throw std::system_error(error, std::generic_category(), path.string());
}

// Other users may write to the parent, so the path must be a folder that belongs to this user.
void make_folder_of_user(const fs::path& folder) {
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) throw_errno(folder, errno);
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) throw_errno(folder, errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::getuid()) throw_errno(folder, EPERM);
}

FileDescriptor open_folder(const fs::path& folder) {
  return FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Sorted, newest first.
std::vector<fs::path> job_folders() {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_of_user(), error)) {
    std::error_code gone;
    const auto time = fs::last_write_time(entry.path(), gone);
    if (!gone && entry.is_directory(gone)) found.emplace_back(time, entry.path());
  }
  std::ranges::sort(found, std::greater());
  std::vector<fs::path> folders;
  for (auto& [time, path] : found) folders.push_back(std::move(path));
  return folders;
}

enum class Holder { none, process, unknown };

/// The process of a record's rank holds the record.
Holder holder_of(const fs::path& file) {
  const FileDescriptor record(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!record.is_open()) return Holder::unknown;
  return ::flock(record.get(), LOCK_SH | LOCK_NB) == 0 ? Holder::none : Holder::process;
}

bool is_running(const fs::path& folder) {
  std::error_code error;  // ignored: the job's launcher may remove the folder
  const fs::directory_iterator entries(folder, error);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return is_record(entry.path()) && holder_of(entry.path()) == Holder::process;
  });
}

void remove_old_folders() {
  std::size_t ended = 0;
  for (const auto& folder : job_folders()) {
    const FileDescriptor lock = open_folder(folder);
    if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code error;  // ignored: a folder that cannot be removed does not affect this job
    if (++ended > max_kept) fs::remove_all(folder, error);
  }
}

}  // namespace

JobFolder::JobFolder(const std::string& name) {
  const fs::path user = folder_of_user();
  make_folder_of_user(user);
  remove_old_folders();
  std::string file_name = name;
  std::ranges::replace(file_name, '/', '_');
  path_ = user / file_name;
  if (::mkdir(path_.c_str(), S_IRWXU) != 0 && errno != EEXIST) throw_errno(path_, errno);
  lock_ = open_folder(path_);
  if (!lock_.is_open() || ::flock(lock_.get(), LOCK_SH) != 0) throw_errno(path_, errno);
}

JobFolder::~JobFolder() {
  std::error_code error;  // ignored: the next job tries again
  if (!kept_) fs::remove_all(path_, error);
}

void remove_ended_records(const fs::path& folder) {
  std::error_code error;  // ignored: a folder of the user need not exist yet
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_record(entry.path()) && holder_of(entry.path()) == Holder::none) ::unlink(entry.path().c_str());
  }
}

bool is_job_folder(const fs::path& folder) {
  return folder.parent_path() == folder_of_user();
}

JobsWithRecords jobs_with_records() {
  JobsWithRecords jobs;
  for (const auto& folder : job_folders()) {
    if (!holds_records(folder)) continue;
    (is_running(folder) ? jobs.running : jobs.ended).push_back(folder);
  }
  return jobs;
}

}  // namespace tutti::flight
