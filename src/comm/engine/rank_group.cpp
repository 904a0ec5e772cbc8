#include "comm/engine/rank_group.h"

#include <string>

#include "comm/engine/describe.h"
#include "comm/engine/transfer.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Connecting fails with a sentence that counts ranks within the group.
std::string sentence_of(const RankGroup& group, const std::vector<int>& culprits, const std::string& sentence) {
  const std::string who = culprits.empty() ? "" : describe_ranks(culprits) + ": ";
  return who + sentence + " (Here ranks are counted among " + std::to_string(group.members.size()) + ", from rank " +
         std::to_string(group.members.front()) + " to rank " + std::to_string(group.members.back()) + ".)";
}

}  // namespace

std::vector<int> RankGroup::in_whole(const std::vector<int>& ranks) const {
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(members.at(static_cast<std::size_t>(rank)));
  return names;
}

void RankGroup::rethrow_with_names_of_whole() const {
  try {
    throw;
  } catch (const TransferError& error) {
    throw TransferError(error.kind(), in_whole(error.peers()), error.what(), error.waited());
  } catch (const Timeout& error) {
    const auto culprits = in_whole(error.ranks());
    throw Timeout(sentence_of(*this, culprits, error.what()), culprits);
  } catch (const PeerFailure& error) {
    const auto culprits = in_whole(error.ranks());
    throw PeerFailure(sentence_of(*this, culprits, error.what()), culprits);
  }
}

}  // namespace tutti::comm
