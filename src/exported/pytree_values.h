#pragma once
// Converts between nested values and the list of their leaves.
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

#include "exported/pytree.h"

namespace tutti::exported {

/// Returns the leaves of the caller's inputs in the graph's order. `in` is a tuple of the positional arguments and a
/// dict of the keyword arguments; `names` has the names of the arguments, positional ones first. Throws UsageError,
/// which names the input that does not fit.
std::vector<c10::IValue> flatten_inputs(const Tree& in, const std::vector<std::string>& names,
                                        std::vector<c10::IValue> positional, std::map<std::string, c10::IValue> named);

/// Returns the leaves in the structure of `tree`. `leaves` has tree.leaves() values.
c10::IValue unflatten(const Tree& tree, std::vector<c10::IValue> leaves);

/// Returns the names of all leaves of the inputs: "x", "batch['mask']".
std::vector<std::string> input_names(const Tree& in, const std::vector<std::string>& names);

/// Throws CheckpointError unless `in` is a tuple of a tuple and a dict with strings as keys.
void check_inputs(const Tree& in);

}  // namespace tutti::exported
