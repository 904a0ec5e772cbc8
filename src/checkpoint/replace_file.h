#pragma once
// Writes a file under a hidden name beside its own, and renames it: a reader sees the old content or the new content.
#include <filesystem>
#include <functional>

namespace tutti::checkpoint {

/// Calls `write` with the hidden name, which must create and sync the file; then gives the file the name `path`, and
/// syncs the folder. Removes the hidden file if `write` throws; a process that is killed leaves it. Writes through a
/// link, and writes what is no regular file, such as a device, in place. Throws CheckpointError.
void replace_file(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);

}  // namespace tutti::checkpoint
