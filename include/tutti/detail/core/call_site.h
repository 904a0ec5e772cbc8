#pragma once
// The source line of a call, for error messages and flight records.
#include <cstring>
#include <string>

namespace tutti {

/// A line of a source file. Functions that take one default it to `here()`, which the compiler fills in: do not pass
/// it.
struct CallSite {
  /// The file name without folders, or a text in its place. Must stay valid until the program ends. Empty: unknown.
  const char* file = "";
  /// From 1. 0: unknown.
  int line = 0;

  /// As a default argument: the line of the call. As a member's initializer: the line that constructs the object.
  // Equivalent to std::source_location::current(), which clang before 15 lacks.
  static CallSite here(const char* path = __builtin_FILE(), int line = __builtin_LINE()) {
    const char* const folders = std::strrchr(path, '/');
    return {folders == nullptr ? path : folders + 1, line};
  }

  /// True if the file is known.
  bool known() const { return *file != '\0'; }
  /// "train.cpp:42"; empty if unknown.
  std::string describe() const { return line > 0 ? std::string(file) + ":" + std::to_string(line) : std::string(file); }
};

}  // namespace tutti
