#pragma once
// Some ranks of a whole, under numbers of their own.
#include <utility>
#include <vector>

#include "comm/engine/operation_here.h"
#include "comm/engine/transfer.h"

namespace tutti::comm {

struct RankGroup {
  std::vector<int> members;        ///< ranks of the whole, by their rank in the group
  bool is_told_elsewhere = false;  ///< another group waits for the same, and tells

  /// Runs `step` on an engine of the group; a failure then names ranks of the whole.
  template <typename Step>
  auto run(const Step& step) const {
    const ToldElsewhere quiet(is_told_elsewhere);
    try {
      return step();
    } catch (const TransferError& error) {
      std::vector<int> ranks;
      for (const int peer : error.peers()) ranks.push_back(members.at(static_cast<std::size_t>(peer)));
      throw TransferError(error.kind(), std::move(ranks), error.what(), error.waited());
    }
  }
};

}  // namespace tutti::comm
