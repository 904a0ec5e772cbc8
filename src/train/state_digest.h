#pragma once
#include <cstddef>
#include <string>

#include "tutti/state/state_dict.h"

namespace tutti {

inline constexpr std::size_t digest_length = 8;

/// A text of digest_length characters that depends on every name and every bit of a state, so that ranks can compare
/// states.
std::string digest_of(const StateDict& state);

}  // namespace tutti
