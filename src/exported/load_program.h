#pragma once
// A .pt2 file, read, checked and compiled.
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "exported/compile.h"
#include "exported/guards.h"
#include "exported/node_rules.h"
#include "exported/program.h"
#include "exported/pytree_values.h"
#include "exported/weights.h"

namespace tutti::exported {

struct LoadedProgram {
  Program program{};
  std::map<std::string, LoadedTensor> weights{};    ///< parameters and persistent buffers, by their Python names
  std::map<std::string, LoadedTensor> constants{};  ///< tensors that a state_dict does not have
  Tree inputs{}, outputs{};
  std::vector<std::string> input_names{};  ///< of the user's inputs, leaf by leaf
  std::optional<Guards> guards{};
  CompileReport report{};
  std::shared_ptr<const Plan> plan{};

  /// Of a parameter, buffer or constant.
  const LoadedTensor& tensor_of(const Input& input) const;
  /// Whether an output is the new value of the buffer.
  bool overwrites(const std::string& buffer) const;
  /// The place among the user's inputs of the one that the graph calls `name`.
  std::size_t mutated_input(const std::string& name) const;
};

/// Throws CheckpointError that names the file. Operators that are missing are left to the caller.
LoadedProgram load_program(const std::filesystem::path& path, const std::string& model);

}  // namespace tutti::exported
