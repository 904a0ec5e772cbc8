#pragma once
// The parameters of one reducer, by the way in which it treats them.
#include <string>
#include <vector>

#include "tutti/detail/sync/named_parameter.h"

namespace tutti::sync {

struct ParameterSet {
  explicit ParameterSet(std::vector<NamedParameter> parameters);

  std::vector<NamedParameter> trained;  ///< parameters with gradients: those with a slot, then those with sparse ones
  int slots = 0;                        ///< the number of parameters with a slot
  std::vector<NamedParameter> frozen;   ///< parameters without gradients, which take part in the replica check only

  /// The prefix of errors that name no parameter; empty if models have no names.
  std::string model_prefix() const;
};

}  // namespace tutti::sync
