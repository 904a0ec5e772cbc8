#pragma once
// Checks that a page is well-formed: tags balanced and nested, attributes quoted, no stray signs.
#include <string>

namespace tutti::test {

/// Returns the first problem, or an empty text.
std::string xml_problem(const std::string& text);

int count_of(const std::string& text, const std::string& part);

}  // namespace tutti::test
