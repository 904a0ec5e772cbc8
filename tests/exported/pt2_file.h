#pragma once
// Small .pt2 files that a test writes itself.
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace tutti::test {

/// What is in an archive, by its name below the archive's folder.
using Records = std::map<std::string, std::string>;

/// A zip file of stored records in the folder "m/", as torch.export.save writes it.
std::string zip_of(const Records& records);

/// models/model.json of a linear layer with a counter: x [s0, 3] -> linear(x, weight [2, 3], bias [2]).
nlohmann::json small_program();
/// Its list of weights: "layer.weight", "layer.bias" and the buffer "inner.seen".
nlohmann::json small_weights();
/// The whole model; the weight is 1, 2, 3, 4, 5, 6, the bias 10, 20, the buffer 7.
Records small_model();
/// small_model() with another program or another list of weights.
Records with_program(const nlohmann::json& program);
Records with_weights(const nlohmann::json& weights);

}  // namespace tutti::test
