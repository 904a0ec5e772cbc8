#include "train/match_saved.h"

namespace tutti {

namespace {

/// A resumed run may have another batch size, for example on another number of ranks: see describe() of loader options.
std::string without_batch_size(std::string identity) {
  const std::string words = " in batches of ";
  const auto begin = identity.find(words);
  if (begin == std::string::npos) return identity;
  const auto end = identity.find_first_not_of("0123456789", begin + words.size());
  return identity.erase(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace

std::vector<std::optional<std::size_t>> match_saved(const std::vector<std::string>& here,
                                                    const std::vector<std::string>& saved) {
  std::vector<std::optional<std::size_t>> matches(here.size());
  std::vector<bool> taken(saved.size(), false);
  const auto match = [&](const auto& are_equal) {
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t j = 0; !matches[i] && j < saved.size(); ++j) {
        if (taken[j] || !are_equal(here[i], saved[j])) continue;
        matches[i] = j;
        taken[j] = true;
      }
    }
  };
  using Identity = std::string;
  match([](const Identity& one, const Identity& other) { return one == other; });
  match(
      [](const Identity& one, const Identity& other) { return without_batch_size(one) == without_batch_size(other); });
  match([](const Identity&, const Identity&) { return true; });
  return matches;
}

}  // namespace tutti
