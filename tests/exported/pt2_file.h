#pragma once
// Small .pt2 files, written without Python.
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace tutti::test {

/// The contents of an archive's records, by their names below the archive's top-level folder.
using Records = std::map<std::string, std::string>;

/// Returns a zip file of uncompressed records in the folder "m/", as torch.export.save writes it.
std::string zip_of(const Records& records);

/// Returns models/model.json of a linear layer with a counter: x [s0, 3] -> linear(x, weight [2, 3], bias [2]).
nlohmann::json small_program();
/// Returns its list of weights: "layer.weight", "layer.bias" and the buffer "inner.seen".
nlohmann::json small_weights();
/// Returns the whole model. The weight is 1, 2, 3, 4, 5, 6, the bias 10, 20, the buffer 7.
Records small_model();
/// Return small_model() with another program or another list of weights.
Records with_program(const nlohmann::json& program);
Records with_weights(const nlohmann::json& weights);

}  // namespace tutti::test
