#pragma once
// The right to write a checkpoint folder, among all processes that share the file system.
//
// The process that writes `runs/checkpoint_12` owns the file `runs/.checkpoint_12.owner`. It creates the file
// exclusively and locks it. The kernel releases the lock when the process exits. Another process that can lock the file
// takes it over, with the partial folders that the first one left. Where the file system has no locks, the file says
// which process created it; only a process of the same boot and PID namespace can tell that this process has exited.
//
// The partial folder has a name that no other process uses, also if a lock fails to exclude one.
#include <filesystem>
#include <optional>

#include "checkpoint/file.h"

namespace tutti::checkpoint {

class Reservation {
 public:
  /// Creates the parent of `folder`. Returns nullopt if another process, or another Reservation of this one, has the
  /// right. Throws CheckpointError. `files` must outlive the result.
  static std::optional<Reservation> try_take(const std::filesystem::path& folder,
                                             const FileSystem& files = FileSystem::system());
  /// As above. Throws UsageError if `folder` exists, or if another process has the right.
  static Reservation take(const std::filesystem::path& folder, const FileSystem& files = FileSystem::system());
  /// Reserves the next name in `parent` (CheckpointFolder::next) that no other job has reserved.
  static Reservation take_next(const std::filesystem::path& parent, std::int64_t step,
                               const FileSystem& files = FileSystem::system());

  Reservation(Reservation&&) noexcept = default;
  Reservation& operator=(Reservation&&) = delete;
  /// Removes the partial folder and the owner file; ignores errors.
  ~Reservation();

  const std::filesystem::path& folder() const { return folder_; }
  /// The partial folder. It exists after make_partial().
  const std::filesystem::path& partial() const { return partial_; }

  /// Removes what killed processes have left of this folder, except the folder itself.
  void remove_leftovers() const;
  /// Removes leftovers, and creates the partial folder.
  void make_partial() const;
  /// Gives the partial folder its final name. Throws CheckpointError if a folder of this name exists.
  void commit() const;
  /// Ends the right but removes nothing, because other ranks may still write to the partial folder. The next process
  /// that takes the right removes it.
  void abandon();

 private:
  Reservation(std::filesystem::path folder, Descriptor owner, const FileSystem& files);

  std::filesystem::path folder_;
  std::filesystem::path partial_;
  Descriptor owner_;  // of the owner file; -1 after abandon() and after a move
  const FileSystem& files_;
};

/// Renames `path`, which may belong to a process that still runs, so that the process cannot commit it; then removes
/// it. `folder` is the checkpoint to which `path` belongs.
void discard(const std::filesystem::path& path, const std::filesystem::path& folder, const FileSystem& files);

}  // namespace tutti::checkpoint
