#pragma once
// Matches objects of a checkpoint with objects of the program. No I/O.
#include <optional>
#include <string>
#include <vector>

namespace tutti {

/// Objects of one kind have numbers in a checkpoint, in the order in which they were prepared: "model", "model_1". An
/// identity says what an object is (the class of a model, the parameters of an optimizer), so that a program may
/// prepare in another order. Returns for each object of `here` the number of the saved object that is loaded into it;
/// nullopt if the checkpoint has too few. Equal identities are matched first, in their order, then loaders that differ
/// in the batch size only, and the remaining objects by their order, for example if a class was renamed.
std::vector<std::optional<std::size_t>> match_saved(const std::vector<std::string>& here,
                                                    const std::vector<std::string>& saved);

}  // namespace tutti
