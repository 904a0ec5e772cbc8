#include "checkpoint/reservation.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <span>
#include <string>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/owner_file.h"
#include "tutti/checkpoint/checkpoint_folder.h"
#include "tutti/core/error.h"

namespace tutti::checkpoint {
namespace {

enum class Lock { taken, held_elsewhere, unsupported };

Lock lock(int descriptor, const std::filesystem::path& path, const FileSystem& files) {
  if (files.lock(descriptor) == 0) return Lock::taken;
  if (errno == EWOULDBLOCK || errno == EAGAIN || errno == EINTR) return Lock::held_elsewhere;
  if (is_unsupported(errno)) return Lock::unsupported;
  fail("lock", path, errno);
}

// False if the file was removed, and perhaps created again, since it was opened.
bool is_at(int descriptor, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// Removes the owner file of a process that has exited. Returns false if the process may still run.
bool remove_ended(const std::filesystem::path& path, const FileSystem& files) {
  const Descriptor owner(files.open(path, O_RDWR), files);
  if (owner.number() < 0) {
    if (errno == ENOENT) return true;
    if (errno == EACCES || errno == EPERM) return false;
    fail("open", path, errno);
  }
  switch (lock(owner.number(), path, files)) {
    case Lock::held_elsewhere:
      return false;
    case Lock::taken:
      break;
    case Lock::unsupported:
      if (!owner_has_exited(owner_text_in(path))) return false;
  }
  // A file that is at this path is removed only by the process that holds its lock.
  if (is_at(owner.number(), path) && files.remove(path) != 0 && errno != ENOENT) fail("remove", path, errno);
  return true;
}

// Returns the descriptor of a new, locked owner file; nullopt if there is one already.
std::optional<Descriptor> create_owner(const std::filesystem::path& path, const FileSystem& files) {
  Descriptor owner(files.open(path, O_WRONLY | O_CREAT | O_EXCL), files);
  if (owner.number() < 0) {
    if (errno == EEXIST) return std::nullopt;
    fail("create", path, errno);
  }
  try {
    // Another process may have found the file before it was locked, and have removed it.
    const Lock result = lock(owner.number(), path, files);
    if (result == Lock::held_elsewhere || (result == Lock::taken && !is_at(owner.number(), path))) return std::nullopt;
    const std::string text = owner_text();
    if (files.write(owner.number(), std::as_bytes(std::span(text))) < 0) fail("write", path, errno);
  } catch (const CheckpointError&) {
    files.remove(path);
    throw;
  }
  return owner;
}

}  // namespace

std::optional<Reservation> Reservation::try_take(const std::filesystem::path& folder, const FileSystem& files) {
  const auto target = normalized(folder);
  make_folders(target.parent_path(), files);
  const auto path = owner_of(target);
  constexpr int attempts = 10;  // an attempt fails only if another process looks at the file at the same time
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (auto owner = create_owner(path, files)) return Reservation(target, std::move(*owner), files);
    if (!remove_ended(path, files)) return std::nullopt;
  }
  return std::nullopt;
}

Reservation Reservation::take(const std::filesystem::path& folder, const FileSystem& files) {
  const auto target = normalized(folder);
  const auto refuse_existing = [&target] {
    if (name_exists(target)) throw UsageError(target.string() + " already exists: choose another name, or remove it");
  };
  refuse_existing();
  auto reservation = try_take(target, files);
  if (!reservation) {
    const auto path = owner_of(target);
    throw UsageError(owner_name(owner_text_in(path)) + " writes " + target.string() +
                     " now: choose another name. If this process has exited, remove " + path.string());
  }
  refuse_existing();  // another process may have committed it meanwhile
  return std::move(*reservation);
}

Reservation Reservation::take_next(const std::filesystem::path& parent, std::int64_t step, const FileSystem& files) {
  for (auto number = *checkpoint_number(CheckpointFolder(parent).next(step));; ++number) {
    const auto folder = parent / checkpoint_name(number, step);
    auto reservation = try_take(folder, files);
    if (reservation && !name_exists(folder)) return std::move(*reservation);
  }
}

Reservation::Reservation(std::filesystem::path folder, Descriptor owner, const FileSystem& files)
    : folder_(std::move(folder)), partial_(partial_of(folder_, new_token())), owner_(std::move(owner)), files_(files) {}

Reservation::~Reservation() {
  if (owner_.number() < 0) return;
  try {
    remove_folder(partial_, files_);
  } catch (const std::exception&) {
    // The next process that takes the right tries again.
  }
  if (const auto path = owner_of(folder_); is_at(owner_.number(), path)) files_.remove(path);
}

void Reservation::remove_leftovers() const {
  const auto own = owner_of(folder_).filename();
  for (const auto& entry : entries_of(folder_.parent_path())) {
    if (entry.filename() == own || entry == partial_) continue;
    const auto of = folder_of_hidden(entry);
    if (of && of->filename() == folder_.filename()) discard(entry, folder_, files_);
  }
}

void Reservation::make_partial() const {
  remove_leftovers();
  make_folders(partial_, files_);
}

void Reservation::commit() const {
  if (rename_to_new_and_sync(partial_, folder_, files_)) return;
  throw CheckpointError("cannot rename " + partial_.string() + " to " + folder_.string() +
                        ", which another process has created meanwhile: save under another name");
}

void Reservation::abandon() {
  if (owner_.number() >= 0) files_.close(owner_.release());
}

void discard(const std::filesystem::path& path, const std::filesystem::path& folder, const FileSystem& files) {
  const auto removed = removed_of(folder, new_token());
  try {
    rename_to_new_and_sync(path, removed, files);
  } catch (const CheckpointError&) {
    if (!name_exists(path)) return;  // another process has removed it
    throw;
  }
  remove_folder(removed, files);
}

}  // namespace tutti::checkpoint
