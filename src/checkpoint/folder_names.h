#pragma once
// Names in a folder of checkpoints: checkpoint_12_step_3000, and what it is called while it is written or removed.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tutti::checkpoint {

/// Where `folder` is written: ".checkpoint_12.partial" beside it.
std::filesystem::path partial_of(const std::filesystem::path& folder);

/// What `folder` is renamed to before it is removed: ".checkpoint_12.removed" beside it.
std::filesystem::path removed_of(const std::filesystem::path& folder);

/// checkpoint_12_step_3000.
std::string checkpoint_name(std::int64_t number, std::int64_t step);

/// 12 for any path that ends in "checkpoint_12_step_3000", or in "checkpoint_12" as earlier versions named them;
/// nullopt for other names.
std::optional<std::int64_t> checkpoint_number(const std::filesystem::path& folder);

/// Whether a path ends in one of the two names above, for a numbered checkpoint.
bool is_leftover(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint
