#include "launch/count_gpus.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

namespace tutti {
namespace {

std::optional<int> read_index(std::string_view text) {
  int index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc{} && end == text.data() + text.size() && index >= 0 ? std::optional(index) : std::nullopt;
}

int count_device_files(const std::filesystem::path& dev) {
  constexpr std::string_view prefix = "nvidia";
  std::error_code error;
  int count = 0;
  for (std::filesystem::directory_iterator file(dev, error), end; !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename();
    if (name.starts_with(prefix) && read_index(std::string_view(name).substr(prefix.size()))) ++count;
  }
  return count;
}

}  // namespace

int count_gpus(const std::filesystem::path& dev, const std::optional<std::string>& visible) {
  const int all = count_device_files(dev);
  if (!visible) return all;
  int count = 0;
  for (std::string_view rest = *visible; !rest.empty();) {
    const auto entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const bool is_unique_name = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    const auto index = read_index(entry);
    if (!is_unique_name && (!index || *index >= all)) break;
    ++count;
  }
  return all == 0 ? 0 : count;
}

}  // namespace tutti
