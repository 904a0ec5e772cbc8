#pragma once
// A file system that records its calls, refuses them, stops at one of them, and loses what was not synced.
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file_system.h"

namespace tutti::test {

/// Reads go past it. Thread safe: ranks of a test share one.
class TestFiles final : public checkpoint::FileSystem {
 public:
  enum class Call { create, write, sync, lock, make_folder, rename_to_new, rename, remove };
  struct Event {
    Call call;
    std::filesystem::path path;
    std::filesystem::path to;  ///< of a rename
  };
  /// Called before each call. Returns the errno with which the call fails; 0: the call is made.
  using Before = std::function<int(const Event&)>;

  explicit TestFiles(Before before = {}) : before_(std::move(before)) {}

  /// Every call from call number `count` on, counted from 0, fails and does nothing: the machine has stopped.
  void stop_at(std::size_t count) { stop_at_ = count; }
  bool has_stopped() const { return stopped_; }
  /// Calls of sync() for which this returns true succeed and sync nothing.
  void forget_syncs(std::function<bool(const std::filesystem::path&)> forgets) { forgets_ = std::move(forgets); }
  std::vector<Event> events() const;

  /// The machine loses power: files are cut to what was synced, and names whose folder was not synced vanish.
  /// `renames`: whether renames whose folder was not synced are lost too; a file system may write them early.
  void lose_power(bool renames);

  int open(const std::filesystem::path& path, int flags) const override;
  ssize_t write(int descriptor, std::span<const std::byte> bytes) const override;
  int sync(int descriptor) const override;
  int close(int descriptor) const override;
  int lock(int descriptor) const override;
  int make_folder(const std::filesystem::path& path) const override;
  int rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to) const override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override;
  int remove(const std::filesystem::path& path) const override;

 private:
  // Records the call. Returns false, with errno set, if it must fail.
  bool allowed(Call call, const std::filesystem::path& path, const std::filesystem::path& to = {}) const;
  void note_rename(const std::filesystem::path& from, const std::filesystem::path& to) const;

  Before before_;
  std::function<bool(const std::filesystem::path&)> forgets_;
  std::size_t stop_at_ = static_cast<std::size_t>(-1);

  mutable std::mutex mutex_;
  mutable bool stopped_ = false;
  mutable std::vector<Event> events_;
  mutable std::map<int, std::filesystem::path> open_;
  mutable std::map<std::filesystem::path, std::uintmax_t> synced_size_;
  mutable std::set<std::filesystem::path> unsynced_names_;
  mutable std::vector<std::pair<std::filesystem::path, std::filesystem::path>> unsynced_renames_;
};

}  // namespace tutti::test
