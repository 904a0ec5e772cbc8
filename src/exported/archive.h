#pragma once
// The records of a .pt2 file, by their names below the archive's top-level folder.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "exported/zip_directory.h"

namespace tutti::exported {

/// Holds the file open. Not thread-safe.
class Archive {
 public:
  /// Throws CheckpointError if the file is not an intact archive. The messages of this class do not name the file.
  explicit Archive(const std::filesystem::path& path);

  bool has(const std::string& name) const { return records_.contains(name); }
  /// Returns the names of the records in `folder`, without the folder. `folder` ends with a slash.
  std::vector<std::string> names_below(const std::string& folder) const;
  /// Returns the number of bytes of a record. Throws CheckpointError if the record does not exist.
  std::uint64_t size_of(const std::string& name) const;
  /// Reads a whole record. `bytes` has size_of(name) bytes. Throws CheckpointError if the checksum does not match.
  void read(const std::string& name, std::span<std::byte> bytes) const;
  /// Reads a record as text. Throws CheckpointError if it has more than `limit` bytes.
  std::string text(const std::string& name, std::uint64_t limit) const;

 private:
  const ZipRecord& record(const std::string& name) const;
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  FileDescriptor file_;
  std::map<std::string, ZipRecord> records_;
};

}  // namespace tutti::exported
