#include "exported/archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

// The top-level folder of a record, with its slash.
std::string root_of(const std::string& name) {
  const auto slash = name.find('/');
  if (slash == std::string::npos) throw CheckpointError("record '" + name + "' is not in a folder");
  return name.substr(0, slash + 1);
}

}  // namespace

// Without O_NONBLOCK, opening a pipe by mistake would wait for a writer.
Archive::Archive(const std::filesystem::path& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_.is_open()) throw CheckpointError("the file cannot be opened: " + reason());
  struct stat about {};
  if (::fstat(file_.get(), &about) != 0) throw CheckpointError("the file cannot be read: " + reason());
  if (!S_ISREG(about.st_mode)) throw CheckpointError("the path is not a regular file");
  const auto records =
      read_zip_directory(static_cast<std::uint64_t>(about.st_size),
                         [this](std::uint64_t offset, std::span<std::byte> bytes) { read_at(offset, bytes); });
  if (records.empty()) throw CheckpointError("the archive has no records");
  const std::string root = root_of(records.front().name);
  for (const ZipRecord& record : records) {
    if (root_of(record.name) != root)
      throw CheckpointError("record '" + record.name + "' is not in the folder '" + root + "'");
    records_.emplace(record.name.substr(root.size()), record);
  }
}

std::vector<std::string> Archive::names_below(const std::string& folder) const {
  std::vector<std::string> names;
  for (auto record = records_.lower_bound(folder); record != records_.end(); ++record) {
    if (!record->first.starts_with(folder)) break;
    names.push_back(record->first.substr(folder.size()));
  }
  return names;
}

const ZipRecord& Archive::record(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) throw CheckpointError("the archive has no record '" + name + "'");
  return found->second;
}

std::uint64_t Archive::size_of(const std::string& name) const {
  return record(name).size;
}

void Archive::read(const std::string& name, std::span<std::byte> bytes) const {
  const ZipRecord& wanted = record(name);
  if (bytes.size() != wanted.size)
    throw CheckpointError("record '" + name + "' has " + std::to_string(wanted.size) + " bytes, not " +
                          std::to_string(bytes.size()));
  read_at(wanted.offset, bytes);
  if (wanted.crc != 0 && crc32_of(bytes) != wanted.crc) {
    throw CheckpointError("the checksum of '" + name + "' is wrong: the file is damaged; copy or export it again");
  }
}

std::string Archive::text(const std::string& name, std::uint64_t limit) const {
  if (size_of(name) > limit) {
    throw CheckpointError("record '" + name + "' has " + std::to_string(size_of(name)) + " bytes; the limit is " +
                          std::to_string(limit));
  }
  std::string content(size_of(name), '\0');
  read(name, std::as_writable_bytes(std::span(content)));
  return content;
}

void Archive::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw CheckpointError("the file cannot be read: " + reason());
    if (count == 0) throw CheckpointError("the file was truncated during reading");
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace tutti::exported
