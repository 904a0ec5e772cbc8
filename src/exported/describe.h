#pragma once
// What an exported program holds, and whether it can be trained, in words.
#include <string>
#include <vector>

#include "exported/load_program.h"

namespace tutti::exported {

struct Description {
  std::string text{};                   ///< what it holds, line by line
  std::vector<std::string> problems{};  ///< why it cannot be trained as it is
  std::vector<std::string> notes{};     ///< what else one should know
};

/// Pure.
Description describe(const LoadedProgram& loaded);

}  // namespace tutti::exported
