#pragma once
// What a process calls its channels, for others to send to. Pure.
//
// Each rank chooses numbers of its own and tells them to the other members of a channel, so nobody has to agree on one.
#include <cstdint>
#include <deque>
#include <optional>

namespace tutti::comm {

/// A number as it stands in tags, and which channel has it for now.
struct Label {
  int number = 0;
  std::uint32_t turn = 0;

  bool operator==(const Label&) const = default;
};

class Labels {
 public:
  Labels();
  /// nullopt where none is left.
  std::optional<Label> take();
  /// Nothing is under way to or from the channel that had it. A number rests for as long as others do: a rank that
  /// called more than the others may still send to it.
  void give_back(const Label& label) { free_.push_back(label.number); }

 private:
  std::deque<int> free_;
  std::uint32_t turns_ = 0;
};

}  // namespace tutti::comm
