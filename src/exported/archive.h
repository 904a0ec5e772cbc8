#pragma once
// A .pt2 file: the records by their names below the archive's own folder.
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

/// Stays open while it lives. One thread.
class Archive {
 public:
  /// Throws CheckpointError, without the file's path, for what is not an archive.
  explicit Archive(const std::filesystem::path& path);

  bool has(const std::string& name) const { return records_.contains(name); }
  /// Names below `folder`, which ends with a slash; without it.
  std::vector<std::string> names_below(const std::string& folder) const;
  /// Bytes of a record; a missing one is a CheckpointError.
  std::uint64_t size_of(const std::string& name) const;
  /// Fills `bytes`, which are as many as the record has, and compares the checksum.
  void read(const std::string& name, std::span<std::byte> bytes) const;
  /// A record of at most `limit` bytes.
  std::string text(const std::string& name, std::uint64_t limit) const;

 private:
  const ZipRecord& record(const std::string& name) const;
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  FileDescriptor file_;
  std::map<std::string, ZipRecord> records_;
};

}  // namespace tutti::exported
