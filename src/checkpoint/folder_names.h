#pragma once
// Names in a folder of checkpoints: checkpoint_12_step_3000, and its names while it is written or removed.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tutti::checkpoint {

/// The name of `folder` while it is written: ".checkpoint_12.partial" in the same parent.
std::filesystem::path partial_of(const std::filesystem::path& folder);

/// The name of `folder` while it is removed: ".checkpoint_12.removed" in the same parent.
std::filesystem::path removed_of(const std::filesystem::path& folder);

/// checkpoint_12_step_3000.
std::string checkpoint_name(std::int64_t number, std::int64_t step);

/// Returns 12 for a path that ends in "checkpoint_12_step_3000" or "checkpoint_12"; nullopt for other names.
std::optional<std::int64_t> checkpoint_number(const std::filesystem::path& folder);

/// True if a path ends in the partial or removed name of a numbered checkpoint.
bool is_leftover(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint
