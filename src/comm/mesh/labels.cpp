#include "comm/mesh/labels.h"

#include "comm/mesh/tags.h"

namespace tutti::comm {

Labels::Labels() {
  for (int number = 0; number < channel_of_words; ++number) free_.push_back(number);
}

std::optional<Label> Labels::take() {
  if (free_.empty()) return std::nullopt;
  const Label label{.number = free_.front(), .turn = ++turns_};
  free_.pop_front();
  return label;
}

}  // namespace tutti::comm
