#pragma once
// Suggestions for misspelt words.
#include <optional>
#include <string>
#include <vector>

namespace tutti {

/// The one of `known` that becomes `word` by the fewest insertions, deletions and replacements of characters, if they
/// are few: a third of its length at most. A word that begins one of `known` stands for it.
std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace tutti
