#include "checkpoint/replace_file.h"

#include <system_error>

#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"

namespace tutti::checkpoint {

namespace {

void remove_if_there(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!path.empty()) std::filesystem::remove(path, ignored);
}

}  // namespace

FileReplacement::FileReplacement(const std::filesystem::path& path,
                                 const std::function<void(const std::filesystem::path&)>& write) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    write(path);
    return;
  }
  const auto behind_links = std::filesystem::canonical(path, ignored);  // empty if there is no file
  target_ = normalized(behind_links.empty() ? path : behind_links);
  partial_ = partial_of(target_, new_token());
  try {
    write(partial_);
  } catch (...) {
    remove_if_there(partial_);
    throw;
  }
}

FileReplacement::~FileReplacement() {
  remove_if_there(partial_);
}

void FileReplacement::remove_earlier() {
  if (partial_.empty()) return;
  remove_folder(target_);
  sync_folder(target_.parent_path());
}

void FileReplacement::commit() {
  if (partial_.empty()) return;
  rename_and_sync(partial_, target_);
  partial_.clear();
}

void replace_file(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write) {
  FileReplacement(path, write).commit();
}

}  // namespace tutti::checkpoint
