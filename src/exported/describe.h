#pragma once
// The report of `tutti export-check`: the contents of an exported program, and whether it can be trained.
#include <string>
#include <vector>

#include "exported/load_program.h"

namespace tutti::exported {

struct Description {
  std::string text{};                   ///< the contents, one item a line
  std::vector<std::string> problems{};  ///< reasons why the program cannot be trained
  std::vector<std::string> notes{};     ///< other facts that the user should know
};

/// No I/O.
Description describe(const LoadedProgram& loaded);

}  // namespace tutti::exported
