#include "comm/backend/subgroup.h"

#include "comm/backend/transfer_error.h"
#include "tutti/core/error.h"

namespace tutti::comm {

std::vector<int> Subgroup::to_parent_ranks(const std::vector<int>& ranks) const {
  std::vector<int> translated;
  for (const int rank : ranks) translated.push_back(parent_ranks.at(static_cast<std::size_t>(rank)));
  return translated;
}

void Subgroup::rethrow_with_parent_ranks() const {
  try {
    throw;
  } catch (const TransferError& error) {
    throw TransferError(error.kind(), to_parent_ranks(error.peers()), error.what(), error.waited());
  } catch (const TimeoutError& error) {
    throw TimeoutError(error.what(), to_parent_ranks(error.ranks()));
  } catch (const PeerError& error) {
    throw PeerError(error.what(), to_parent_ranks(error.ranks()));
  }
}

}  // namespace tutti::comm
