#pragma once
#include <string>

#include "tutti/state/state_dict.h"

namespace tutti {

/// A text of 8 characters that depends on every name and every bit of a state, so that ranks can compare
/// states.
std::string digest_of(const StateDict& state);

}  // namespace tutti
