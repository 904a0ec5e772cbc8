#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/damaged.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::checkpoint {
namespace {

// Linux transfers at most 2 GiB in one call. Smaller portions keep the input of the checksum in the cache.
constexpr std::size_t portion = std::size_t{1} << 20;

template <typename Call>
auto until_not_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Descriptor open_file(const std::filesystem::path& path, int flags, const std::string& what, const FileSystem& files) {
  const int descriptor = until_not_interrupted([&] { return files.open(path, flags); });
  if (descriptor < 0) fail(what, path, errno);
  return {descriptor, files};
}

Descriptor open_input(const std::filesystem::path& path) {
  const FileSystem& files = FileSystem::system();
  // Without O_NONBLOCK, opening a pipe by mistake would wait for a writer.
  const int descriptor = until_not_interrupted([&] { return files.open(path, O_RDONLY | O_NONBLOCK); });
  if (descriptor >= 0) return {descriptor, files};
  if (errno == ENOENT || errno == ESTALE) {
    throw DamagedCheckpointError("cannot open " + path.string() + ": " + std::generic_category().message(errno));
  }
  fail("open", path, errno);
}

}  // namespace

void fail(const std::string& what, const std::filesystem::path& path, int reason) {
  throw CheckpointError("cannot " + what + " " + path.string() + ": " + std::generic_category().message(reason));
}

OutputFile::OutputFile(std::filesystem::path path, const FileSystem& files)
    : path_(std::move(path)),
      files_(files),
      descriptor_(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC, "create", files)) {}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto next = bytes.first(std::min(bytes.size(), portion));
    const ssize_t count = until_not_interrupted([&] { return files_.write(descriptor_.number(), next); });
    if (count < 0) fail("write", path_, errno);
    const auto written = bytes.first(static_cast<std::size_t>(count));
    digest_.crc = crc32c(written, digest_.crc);
    digest_.size += written.size();
    bytes = bytes.subspan(written.size());
  }
}

FileDigest OutputFile::finish() {
  if (until_not_interrupted([&] { return files_.sync(descriptor_.number()); }) != 0) fail("sync", path_, errno);
  // Some file systems report a full disk only on close().
  if (files_.close(descriptor_.release()) != 0 && errno != EINTR) fail("close", path_, errno);
  return digest_;
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)), descriptor_(open_input(path_)) {
  struct stat status {};
  if (::fstat(descriptor_.number(), &status) != 0) fail("read", path_, errno);
  if (!S_ISREG(status.st_mode)) {
    throw DamagedCheckpointError("cannot read " + path_.string() + ": it is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto next = bytes.first(std::min(bytes.size(), portion));
    const ssize_t count = until_not_interrupted([&] { return ::read(descriptor_.number(), next.data(), next.size()); });
    if (count < 0 && errno == EIO) throw DamagedCheckpointError("cannot read " + path_.string() + ": the disk failed");
    if (count < 0) fail("read", path_, errno);
    if (count == 0) throw DamagedCheckpointError(path_.string() + " was truncated while it was read");
    const auto got = bytes.first(static_cast<std::size_t>(count));
    digest_.crc = crc32c(got, digest_.crc);
    digest_.size += got.size();
    bytes = bytes.subspan(got.size());
  }
}

FileDigest write_text(const std::filesystem::path& path, const std::string& text, const FileSystem& files) {
  OutputFile file(path, files);
  file.write(std::as_bytes(std::span(text)));
  return file.finish();
}

FileText read_text(const std::filesystem::path& path, std::uint64_t max_size) {
  InputFile file(path);
  if (file.size() > max_size) {
    throw DamagedCheckpointError(path.string() + " has " + std::to_string(file.size()) + " bytes; the limit is " +
                                 std::to_string(max_size));
  }
  FileText content;
  content.text.resize(file.size());
  file.read(std::as_writable_bytes(std::span(content.text)));
  content.digest = file.digest();
  return content;
}

void sync_folder(const std::filesystem::path& folder, const FileSystem& files) {
  const Descriptor descriptor = open_file(folder, O_RDONLY | O_DIRECTORY, "open", files);
  if (until_not_interrupted([&] { return files.sync(descriptor.number()); }) == 0) return;
  if (!is_unsupported(errno)) fail("sync", folder, errno);
}

std::filesystem::path normalized(const std::filesystem::path& path) {
  auto normal = path.lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal.has_parent_path() ? normal : "." / normal;
}

bool name_exists(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (!std::filesystem::status_known(status)) fail("access", path, error.value());
  return std::filesystem::exists(status);
}

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CheckpointError("cannot list " + folder.string() + ": " + error.message());
  }
  return entries;
}

void make_folders(const std::filesystem::path& folder, const FileSystem& files) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (auto path = normalized(folder); !std::filesystem::exists(path, error); path = normalized(path).parent_path()) {
    missing.push_back(path);
    if (path.parent_path() == path) break;
  }
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    // Another process may create it at the same time.
    if (files.make_folder(*path) != 0 && errno != EEXIST) fail("create the folder", *path, errno);
    sync_folder(normalized(*path).parent_path(), files);
  }
  if (!std::filesystem::is_directory(folder, error)) {
    throw CheckpointError("cannot use " + folder.string() + " as a folder: it is not a folder");
  }
}

void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (FileSystem::system().rename(from, to) != 0) fail("rename " + from.string() + " to", to, errno);
  sync_folder(normalized(to).parent_path());
}

bool rename_to_new_and_sync(const std::filesystem::path& from, const std::filesystem::path& to,
                            const FileSystem& files) {
  int result = files.rename_to_new(from, to);
  if (result != 0 && is_unsupported(errno)) {
    // POSIX replaces a folder by a folder only if it is empty, so a complete checkpoint is not replaced.
    if (name_exists(to)) return false;
    result = files.rename(from, to);
  }
  if (result != 0 && (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR)) return false;
  if (result != 0) fail("rename " + from.string() + " to", to, errno);
  sync_folder(normalized(to).parent_path(), files);
  return true;
}

void remove_folder(const std::filesystem::path& folder, const FileSystem& files) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(std::filesystem::symlink_status(folder, error));
  if (is_folder) {
    for (const auto& entry : entries_of(folder)) remove_folder(entry, files);
  }
  if (files.remove(folder) != 0 && errno != ENOENT) fail("remove", folder, errno);
}

}  // namespace tutti::checkpoint
