#include "comm/backend/subgroup.h"

#include <string>

#include "comm/backend/describe.h"
#include "comm/backend/transfer_error.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Error texts of a connect count ranks within the subgroup, so the message gives the parent ranks as well.
std::string describe_in_subgroup(const Subgroup& group, const std::vector<int>& failed_ranks, const std::string& text) {
  const std::string prefix = failed_ranks.empty() ? "" : describe_ranks(failed_ranks) + ": ";
  return prefix + text + " (This message numbers ranks within a subgroup of " +
         std::to_string(group.parent_ranks.size()) + " ranks, from rank " + std::to_string(group.parent_ranks.front()) +
         " to rank " + std::to_string(group.parent_ranks.back()) + ".)";
}

}  // namespace

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
    const auto failed_ranks = to_parent_ranks(error.ranks());
    throw TimeoutError(describe_in_subgroup(*this, failed_ranks, error.what()), failed_ranks);
  } catch (const PeerError& error) {
    const auto failed_ranks = to_parent_ranks(error.ranks());
    throw PeerError(describe_in_subgroup(*this, failed_ranks, error.what()), failed_ranks);
  }
}

}  // namespace tutti::comm
