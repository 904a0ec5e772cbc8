#pragma once
// How many GPUs ranks may use, without CUDA's library, which the launcher does not link.
#include <filesystem>
#include <optional>
#include <string>

namespace tutti {

/// The NVIDIA GPUs of the folder `dev` (nvidia0, nvidia1, ...) that CUDA_VISIBLE_DEVICES, `visible`, allows. As in
/// CUDA, an entry that names no GPU hides those behind it.
int count_gpus(const std::filesystem::path& dev, const std::optional<std::string>& visible);

}  // namespace tutti
