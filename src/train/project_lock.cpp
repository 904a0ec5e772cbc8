#include "train/project_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>

#include "checkpoint/agreement.h"
#include "checkpoint/file.h"
#include "checkpoint/file_system.h"
#include "checkpoint/owner_file.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

constexpr const char* lock_name = ".lock";

}  // namespace

ProjectLock::ProjectLock(const std::filesystem::path& folder) {
  const auto& files = checkpoint::FileSystem::system();
  checkpoint::make_folders(folder, files);
  const auto path = folder / lock_name;
  file_ = FileDescriptor::open_unshared([&] { return files.open(path, O_RDWR | O_CREAT); });
  if (!file_.is_open()) checkpoint::fail("open", path, errno);
  if (files.lock(file_.get()) != 0) {
    if (checkpoint::is_unsupported(errno)) return;
    throw UsageError(checkpoint::owner_name(checkpoint::owner_text_in(path)) + " trains in " + folder.string() +
                     " now: choose another project_dir, or wait for its end");
  }
  const std::string owner = checkpoint::owner_text();  // for the message above; without it the lock is as good
  if (::ftruncate(file_.get(), 0) == 0) files.write(file_.get(), std::as_bytes(std::span(owner)));
}

std::unique_ptr<ProjectLock> ProjectLock::of_job(const std::filesystem::path& folder,
                                                 const Communicator& communicator) {
  std::unique_ptr<ProjectLock> lock;
  checkpoint::on_all_ranks(communicator, "project folder", [&] {
    if (communicator.rank() == 0) lock = std::make_unique<ProjectLock>(folder);
    return std::string();
  });
  // Now, and not at the first save, which may be hours later.
  checkpoint::on_all_ranks(communicator, "project folder", [&] {
    std::error_code ignored;
    if (std::filesystem::exists(folder / lock_name, ignored)) return std::string();
    throw CheckpointError(
        folder.string() +
        ", where rank 0 trains, is another folder on this rank: all ranks must share one file system, "
        "and have the same project_dir");
  });
  return lock;
}

}  // namespace tutti
