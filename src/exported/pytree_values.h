#pragma once
// Values in the shape of a tree: taken apart for the graph, put together for the caller.
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

#include "exported/pytree.h"

namespace tutti::exported {

/// The leaves of what the caller gave, in the graph's order. `in` is a tuple of the positional arguments and a dict of
/// the others; `names` are the arguments' names, positional ones first. Throws UsageError naming what does not fit.
std::vector<c10::IValue> flatten_inputs(const Tree& in, const std::vector<std::string>& names,
                                        std::vector<c10::IValue> positional, std::map<std::string, c10::IValue> named);

/// `leaves` are as many as the tree's.
c10::IValue unflatten(const Tree& tree, std::vector<c10::IValue> leaves);

/// Names of all leaves of the inputs: "x", "batch['mask']".
std::vector<std::string> input_names(const Tree& in, const std::vector<std::string>& names);

/// Throws CheckpointError unless `in` is a tuple of a tuple and a dict with texts as keys.
void check_inputs(const Tree& in);

}  // namespace tutti::exported
