#pragma once
// Draws held-out loss over bytes and over seconds as SVG.
#include <string>

#include "local_sgd/table.h"

namespace tutti::bench {

/// Draws one point for each method, with a bar from its smallest to its largest loss.
std::string draw(const MethodTable& table);

/// Throws std::runtime_error.
void write_picture(const MethodTable& table, const std::string& file);

}  // namespace tutti::bench
