#pragma once
// The style and the script of every page. Both are embedded in the page.
#include <string_view>

namespace tutti {

std::string_view page_style();
std::string_view page_script();

}  // namespace tutti
