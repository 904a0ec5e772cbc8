#include "checkpoint/test_files.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

namespace tutti::test {
namespace {

bool is_within(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return path == folder || path.string().starts_with(folder.string() + "/");
}

std::filesystem::path moved(const std::filesystem::path& path, const std::filesystem::path& from,
                            const std::filesystem::path& to) {
  return path == from ? to : to / path.string().substr(from.string().size() + 1);
}

}  // namespace

std::vector<TestFiles::Event> TestFiles::events() const {
  const std::lock_guard hold(mutex_);
  return events_;
}

bool TestFiles::allowed(Call call, const std::filesystem::path& path, const std::filesystem::path& to) const {
  const Event event{.call = call, .path = path, .to = to};
  if (events_.size() >= stop_at_) {
    stopped_ = true;
    errno = EIO;
    return false;
  }
  events_.push_back(event);
  const int reason = before_ ? before_(event) : 0;
  errno = reason;
  return reason == 0;
}

int TestFiles::open(const std::filesystem::path& path, int flags) const {
  const std::lock_guard hold(mutex_);
  const bool creates = (flags & O_CREAT) != 0;
  if (creates && !allowed(Call::create, path)) return -1;
  if (!creates && stopped_) {
    errno = EIO;
    return -1;
  }
  const int descriptor = FileSystem::open(path, flags);
  if (descriptor < 0) return descriptor;
  open_[descriptor] = path;
  if (creates) {
    unsynced_names_.insert(path);
    synced_size_[path] = 0;
  }
  return descriptor;
}

ssize_t TestFiles::write(int descriptor, std::span<const std::byte> bytes) const {
  const std::lock_guard hold(mutex_);
  return allowed(Call::write, open_.at(descriptor)) ? FileSystem::write(descriptor, bytes) : -1;
}

int TestFiles::sync(int descriptor) const {
  const std::lock_guard hold(mutex_);
  const std::filesystem::path path = open_.at(descriptor);
  if (!allowed(Call::sync, path)) return -1;
  if (forgets_ && forgets_(path)) return 0;
  if (std::filesystem::is_directory(path)) {
    std::erase_if(unsynced_names_, [&](const auto& name) { return name.parent_path() == path; });
    std::erase_if(unsynced_renames_, [&](const auto& rename) { return rename.second.parent_path() == path; });
  } else {
    synced_size_[path] = std::filesystem::file_size(path);
  }
  return 0;
}

int TestFiles::close(int descriptor) const {
  const std::lock_guard hold(mutex_);
  open_.erase(descriptor);
  return FileSystem::close(descriptor);
}

int TestFiles::lock(int descriptor) const {
  const std::lock_guard hold(mutex_);
  return allowed(Call::lock, open_.at(descriptor)) ? FileSystem::lock(descriptor) : -1;
}

int TestFiles::make_folder(const std::filesystem::path& path) const {
  const std::lock_guard hold(mutex_);
  if (!allowed(Call::make_folder, path)) return -1;
  const int result = FileSystem::make_folder(path);
  if (result == 0) unsynced_names_.insert(path);
  return result;
}

int TestFiles::rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to) const {
  const std::lock_guard hold(mutex_);
  if (!allowed(Call::rename_to_new, from, to)) return -1;
  const int result = FileSystem::rename_to_new(from, to);
  if (result == 0) note_rename(from, to);
  return result;
}

int TestFiles::rename(const std::filesystem::path& from, const std::filesystem::path& to) const {
  const std::lock_guard hold(mutex_);
  if (!allowed(Call::rename, from, to)) return -1;
  const int result = FileSystem::rename(from, to);
  if (result == 0) note_rename(from, to);
  return result;
}

int TestFiles::remove(const std::filesystem::path& path) const {
  const std::lock_guard hold(mutex_);
  if (!allowed(Call::remove, path)) return -1;
  const int result = FileSystem::remove(path);
  if (result == 0) {
    synced_size_.erase(path);
    unsynced_names_.erase(path);
  }
  return result;
}

void TestFiles::note_rename(const std::filesystem::path& from, const std::filesystem::path& to) const {
  unsynced_renames_.emplace_back(from, to);
  std::map<std::filesystem::path, std::uintmax_t> sizes;
  for (const auto& [path, size] : synced_size_) sizes[is_within(path, from) ? moved(path, from, to) : path] = size;
  synced_size_ = std::move(sizes);
  std::set<std::filesystem::path> names;
  for (const auto& path : unsynced_names_) names.insert(is_within(path, from) ? moved(path, from, to) : path);
  names.erase(to);  // the rename is recorded instead
  unsynced_names_ = std::move(names);
}

void TestFiles::lose_power(bool renames) {
  const std::lock_guard hold(mutex_);
  std::error_code ignored;
  for (const auto& [path, size] : synced_size_) {
    if (std::filesystem::exists(path)) std::filesystem::resize_file(path, size, ignored);
  }
  for (const auto& path : unsynced_names_) std::filesystem::remove_all(path, ignored);
  if (renames) {
    for (auto rename = unsynced_renames_.rbegin(); rename != unsynced_renames_.rend(); ++rename) {
      std::filesystem::rename(rename->second, rename->first, ignored);
    }
  }
}

}  // namespace tutti::test
