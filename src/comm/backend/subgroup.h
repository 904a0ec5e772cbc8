#pragma once
// A subset of a backend's ranks, numbered from 0, and the translation of its ranks in errors.
#include <vector>

#include "comm/backend/current_operation.h"

namespace tutti::comm {

struct Subgroup {
  std::vector<int> parent_ranks;       ///< ranks of the parent, by rank of the subgroup
  bool suppress_slow_warning = false;  ///< true if another subgroup warns about the same wait

  /// Runs `call`, which uses a backend of the subgroup. Rethrows TransferError, PeerError and TimeoutError with ranks
  /// of the parent. Their texts name ranks by their numbers in the job.
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
