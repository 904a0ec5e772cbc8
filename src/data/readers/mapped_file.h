#pragma once
// A memory-mapped file.
#include <cstddef>
#include <filesystem>
#include <span>

namespace tutti::readers {

/// Maps a whole regular file. Writes to a writable mapping stay in this process's memory. The file must not become
/// shorter while it is mapped: a read past its end raises SIGBUS.
class MappedFile {
 public:
  /// Throws DataError.
  explicit MappedFile(std::filesystem::path path, bool writable = false);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(memory_), size_}; }
  /// The same bytes, for a writable mapping.
  std::byte* data() { return static_cast<std::byte*>(memory_); }

 private:
  std::filesystem::path path_;
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tutti::readers
