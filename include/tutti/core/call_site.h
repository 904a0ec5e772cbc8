#pragma once
// Where in a program a call stands, for messages about ranks that wait for one another.
#include <cstring>
#include <string>

namespace tutti {

/// A line of a source file. The compiler fills it in: what takes one has `here()` as its default, so leave it out.
struct CallSite {
  /// The file's name without folders, or words that stand for one. It lasts as long as the program. Empty: not known.
  const char* file = "";
  /// Counts from 1. 0: not known.
  int line = 0;

  /// As a default argument and as a member's initializer: where the call, or the object, is written.
  // What std::source_location::current() does; clang before 15 does not have that.
  static CallSite here(const char* path = __builtin_FILE(), int line = __builtin_LINE()) {
    const char* const folders = std::strrchr(path, '/');
    return {folders == nullptr ? path : folders + 1, line};
  }

  /// Whether there is something to tell.
  bool known() const { return *file != '\0'; }
  /// "train.cpp:42"; empty where it is not known.
  std::string describe() const { return line > 0 ? std::string(file) + ":" + std::to_string(line) : std::string(file); }
};

}  // namespace tutti
