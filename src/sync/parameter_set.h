#pragma once
// The parameters of one reducer, by the way in which it treats them.
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/detail/sync/named_parameter.h"

namespace tutti::sync {

struct ParameterSet {
  explicit ParameterSet(std::vector<NamedParameter> parameters);

  std::vector<NamedParameter> trained;  ///< parameters with gradients: those with a slot, then those with sparse ones
  int slots = 0;                        ///< the number of parameters with a slot
  std::vector<NamedParameter> frozen;   ///< parameters without gradients, which take part in the replica check only

  /// The prefix of errors that name no parameter; empty if models have no names.
  std::string model_prefix() const;
  /// Runs an action and adds the prefix to its UsageErrors.
  template <typename Action>
  void with_model_prefix(const Action& action) const;
};

template <typename Action>
void ParameterSet::with_model_prefix(const Action& action) const {
  try {
    action();
  } catch (const UsageError& error) {
    const std::string prefix = model_prefix();
    const std::string text = error.what();
    // The message may name a parameter together with its model.
    if (prefix.empty() || text.find(prefix.substr(0, prefix.size() - 2)) != std::string::npos) throw;
    throw UsageError(prefix + text);
  }
}

}  // namespace tutti::sync
