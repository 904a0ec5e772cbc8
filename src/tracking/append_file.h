#pragma once
// A file that only grows. Each append is one write(2), so in the file of a killed process only the last piece can be
// incomplete.
#include <filesystem>
#include <string_view>

#include "core/file_descriptor.h"

namespace tutti {

class AppendFile {
 public:
  enum class Open { existing_or_new, must_be_new };

  /// Creates the folders above `path`. Throws tutti::Error if the file cannot be opened.
  AppendFile(std::filesystem::path path, Open how);

  /// True if the file is empty or its last byte is a line feed, and for a pipe.
  bool ends_with_line() const;
  /// Throws tutti::Error if the bytes cannot be written, for example on a full disk. A regular file then has the bytes
  /// that it had before.
  void append(std::string_view bytes);
  /// Returns when the bytes are on the disk.
  void sync();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace tutti
