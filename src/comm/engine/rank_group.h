#pragma once
// Some ranks of a whole, under numbers of their own.
#include <vector>

#include "comm/engine/operation_here.h"

namespace tutti::comm {

struct RankGroup {
  std::vector<int> members;        ///< ranks of the whole, by their rank in the group
  bool is_told_elsewhere = false;  ///< another group waits for the same, and tells

  /// Runs `step` on an engine of the group. A failure then names ranks of the whole: TransferError, PeerFailure and
  /// Timeout are thrown anew.
  template <typename Step>
  auto run(const Step& step) const {
    const ToldElsewhere quiet(is_told_elsewhere);
    try {
      return step();
    } catch (...) {
      rethrow_with_names_of_whole();
    }
  }

 private:
  std::vector<int> in_whole(const std::vector<int>& ranks) const;
  [[noreturn]] void rethrow_with_names_of_whole() const;
};

}  // namespace tutti::comm
