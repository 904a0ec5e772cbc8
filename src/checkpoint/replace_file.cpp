#include "checkpoint/replace_file.h"

#include <system_error>

#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"

namespace tutti::checkpoint {

void replace_file(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) return write(path);
  const auto target = normalized(std::filesystem::exists(status) ? std::filesystem::canonical(path) : path);
  const auto partial = partial_of(target, new_token());
  try {
    write(partial);
    rename_and_sync(partial, target);
  } catch (...) {
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

}  // namespace tutti::checkpoint
