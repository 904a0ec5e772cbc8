#pragma once
// A file that only grows: each append is one write(2), so a killed process leaves whole pieces, but perhaps the last.
#include <filesystem>
#include <string_view>

namespace tutti {

class AppendFile {
 public:
  enum class Open { existing_or_new, must_be_new };

  /// Makes the folders above `path`. Throws tutti::Error when the file cannot be opened.
  AppendFile(std::filesystem::path path, Open how);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// True for an empty file, and for one whose last byte is a line feed.
  bool ends_with_line() const;
  void append(std::string_view bytes);
  /// Returns when the bytes are on the disk.
  void sync();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace tutti
