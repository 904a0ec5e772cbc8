#include "train/match_saved.h"

namespace tutti {

std::vector<std::optional<std::size_t>> match_saved(const std::vector<std::string>& here,
                                                    const std::vector<std::string>& saved) {
  std::vector<std::optional<std::size_t>> matches(here.size());
  std::vector<bool> taken(saved.size(), false);
  const auto match = [&](bool by_identity) {
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t j = 0; !matches[i] && j < saved.size(); ++j) {
        if (taken[j] || (by_identity && saved[j] != here[i])) continue;
        matches[i] = j;
        taken[j] = true;
      }
    }
  };
  match(true);
  match(false);
  return matches;
}

}  // namespace tutti
