#pragma once
// What every page has: its style, and the script that reads values off the curves. Both stand in the page itself.
#include <string_view>

namespace tutti {

std::string_view page_style();
std::string_view page_script();

}  // namespace tutti
