#include "tracking/xml.h"

#include <cctype>
#include <vector>

namespace tutti::test {
namespace {

std::string near(const std::string& text, std::size_t place) {
  return " near: " + text.substr(place, 80);
}

bool has_stray_ampersand(const std::string& text) {
  for (auto place = text.find('&'); place != std::string::npos; place = text.find('&', place + 1)) {
    bool is_known = false;
    for (const std::string entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
      is_known = is_known || text.compare(place, entity.size(), entity) == 0;
    }
    if (!is_known) return true;
  }
  return false;
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == ':';
}

/// True if the text after a tag's name is attributes with quoted values.
bool are_attributes(const std::string& text) {
  std::size_t place = 0;
  while (place < text.size()) {
    if (text[place++] != ' ') return false;
    if (place == text.size() || !is_name(text[place])) return false;
    while (place < text.size() && is_name(text[place])) ++place;
    if (text.compare(place, 2, "=\"") != 0) return false;
    place = text.find('"', place + 2);
    if (place == std::string::npos) return false;
    ++place;
  }
  return true;
}

}  // namespace

std::string xml_problem(const std::string& text) {
  std::vector<std::string> open;
  std::size_t place = 0;
  while (place < text.size()) {
    const auto next = text.find('<', place);
    if (has_stray_ampersand(text.substr(place, next - place))) return "stray &" + near(text, place);
    if (next == std::string::npos) break;
    const bool is_data = text.compare(next, 9, "<![CDATA[") == 0;
    const auto end = text.find(is_data ? "]]>" : ">", next);
    if (end == std::string::npos) return "no end" + near(text, next);
    place = end + (is_data ? 3 : 1);
    if (text[next + 1] == '!') continue;

    std::string tag = text.substr(next + 1, end - next - 1);
    if (has_stray_ampersand(tag) || tag.find('<') != std::string::npos) return "stray sign in a tag" + near(text, next);
    const bool closes = tag.starts_with('/');
    const bool is_empty = tag.ends_with('/');
    if (closes) tag.erase(0, 1);
    if (is_empty) tag.pop_back();
    std::size_t length = 0;
    while (length < tag.size() && is_name(tag[length])) ++length;
    const std::string name = tag.substr(0, length);
    if (name.empty() || !are_attributes(tag.substr(length))) return "not a tag" + near(text, next);
    if (closes) {
      if (open.empty() || open.back() != name) return "closes what is not open" + near(text, next);
      open.pop_back();
    } else if (!is_empty) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "left open: " + open.back();
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto place = text.find(part); place != std::string::npos; place = text.find(part, place + 1)) ++count;
  return count;
}

}  // namespace tutti::test
