#pragma once
// Reads, checks and compiles a .pt2 file.
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
  std::map<std::string, LoadedTensor> weights{};    ///< parameters and persistent buffers, by Python name
  std::map<std::string, LoadedTensor> constants{};  ///< tensors that are not in a state_dict, by Python name
  Tree inputs{}, outputs{};
  std::vector<std::string> input_names{};  ///< of the leaves of the user's inputs
  std::optional<Guards> guards{};
  CompileReport report{};
  std::shared_ptr<const Plan> plan{};

  /// Returns the tensor of a parameter, buffer or constant. Throws CheckpointError if the file lacks it.
  const LoadedTensor& tensor_of(const Input& input) const;
  /// Returns true if an output of the graph is the new value of `buffer`.
  bool overwrites(const std::string& buffer) const;
  /// Returns the index, among the user's inputs, of the tensor `name` of the graph. Throws CheckpointError if there is
  /// none.
  std::size_t mutated_input(const std::string& name) const;
};

/// `model` may be empty if the file has one model. Throws CheckpointError, which names the file. Does not throw for
/// missing operators: the caller passes `report` to require_operators().
LoadedProgram load_program(const std::filesystem::path& path, const std::string& model);

}  // namespace tutti::exported
