#pragma once
// Names in a folder of checkpoints: checkpoint_12_step_3000, and the hidden names beside it while it is written or
// removed. A token makes a hidden name unique, so that two jobs in one folder never use the same one.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tutti::checkpoint {

/// 16 hexadecimal digits, different at every call.
std::string new_token();

/// The name of `folder` while it is written: ".checkpoint_12.TOKEN.partial" in the same parent.
std::filesystem::path partial_of(const std::filesystem::path& folder, const std::string& token);

/// The name of `folder` while it is removed: ".checkpoint_12.TOKEN.removed" in the same parent.
std::filesystem::path removed_of(const std::filesystem::path& folder, const std::string& token);

/// The file of the process that writes `folder`: ".checkpoint_12.owner" in the same parent.
std::filesystem::path owner_of(const std::filesystem::path& folder);

/// The folder to which a hidden name belongs, also if it has no token, as in earlier versions; nullopt for other names.
std::optional<std::filesystem::path> folder_of_hidden(const std::filesystem::path& hidden);

/// checkpoint_12_step_3000.
std::string checkpoint_name(std::int64_t number, std::int64_t step);

/// The number and the step in a checkpoint's name.
struct CheckpointNumbers {
  std::int64_t number = 0;
  std::int64_t step = -1;  ///< -1: the name has none, as in earlier versions
  auto operator<=>(const CheckpointNumbers&) const = default;
};
/// Returns 12 and 3000 for a path that ends in "checkpoint_12_step_3000", 12 for "checkpoint_12"; nullopt for other
/// names.
std::optional<CheckpointNumbers> checkpoint_numbers(const std::filesystem::path& folder);
/// The number alone.
std::optional<std::int64_t> checkpoint_number(const std::filesystem::path& folder);

/// True if a path ends in a hidden name of a numbered checkpoint.
bool is_leftover(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint
