#pragma once
// A file as memory.
#include <cstddef>
#include <filesystem>
#include <span>

namespace tutti::readers {

/// All of a regular file, mapped. What is written into a writable mapping stays in this process's memory. The file must
/// not become shorter while it is mapped: the system ends a process that reads beyond its end.
class MappedFile {
 public:
  /// Throws DataError.
  explicit MappedFile(std::filesystem::path path, bool writable = false);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(memory_), size_}; }
  /// Where it is writable.
  std::byte* data() { return static_cast<std::byte*>(memory_); }

 private:
  std::filesystem::path path_;
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tutti::readers
