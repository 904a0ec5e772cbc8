#pragma once
// Some ranks of a whole, under numbers of their own.
#include <vector>

#include "comm/backend/current_operation.h"

namespace tutti::comm {

struct Subgroup {
  std::vector<int> parent_ranks;       ///< ranks of the whole, by their rank in the group
  bool suppress_slow_warning = false;  ///< another group waits for the same, and tells

  /// Runs `call` on a backend of the group. A failure then names ranks of the whole: TransferError, PeerError and
  /// TimeoutError are thrown anew.
  template <typename Call>
  auto run(const Call& call) const {
    const SuppressSlowWarning suppress(suppress_slow_warning);
    try {
      return call();
    } catch (...) {
      rethrow_with_parent_ranks();
    }
  }

 private:
  std::vector<int> to_parent_ranks(const std::vector<int>& ranks) const;
  [[noreturn]] void rethrow_with_parent_ranks() const;
};

}  // namespace tutti::comm
