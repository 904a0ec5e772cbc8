#include "comm/call_signature.h"

#include <utility>
#include <vector>

#include "comm/backend/describe.h"
#include "core/hash.h"
#include "tutti/core/error.h"

namespace tutti::comm {

CallSignature::CallSignature(const std::string& call, std::uint64_t bytes_behind)
    : hash(fnv1a(call)), length(bytes_behind) {
  text_size = std::min(call.size(), text.size());
  std::copy_n(call.begin(), text_size, text.begin());
}

std::uint64_t longest_of(std::span<const std::uint64_t> by_rank) {
  const auto longest = std::ranges::max_element(by_rank);
  if (longest == by_rank.end()) return 0;
  constexpr std::uint64_t addresses = std::uint64_t{1} << 47;  // the addresses of a process
  const auto rank = static_cast<int>(longest - by_rank.begin());
  if (*longest < addresses / by_rank.size()) return *longest;
  throw PeerError("rank " + std::to_string(rank) + " announced a message of " + std::to_string(*longest) +
                      " bytes, more than memory can hold. Nothing was exchanged.",
                  {rank});
}

std::uint64_t longest_of(std::span<const CallSignature> by_rank) {
  std::vector<std::uint64_t> lengths(by_rank.size());
  std::ranges::transform(by_rank, lengths.begin(), &CallSignature::length);
  return longest_of(lengths);
}

void check_signatures(std::span<const CallSignature> by_rank, const Operation& operation) {
  const auto agrees = [&](const CallSignature& one) { return one.hash == by_rank.front().hash; };
  if (std::ranges::all_of(by_rank, agrees)) return;
  std::vector<std::pair<const CallSignature*, std::vector<int>>> calls;  // in the order of their first ranks
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto& one = by_rank[rank];
    auto call = std::ranges::find_if(calls, [&](const auto& known) { return known.first->hash == one.hash; });
    if (call == calls.end()) call = calls.insert(call, {&one, {}});
    call->second.push_back(static_cast<int>(rank));
  }

  std::string message;
  for (const auto& [call, ranks] : calls) {
    message += message.empty() ? "" : " where ";
    message += operation.job_ranks.describe(ranks) + (ranks.size() == 1 ? " calls " : " call ") + call->call();
  }
  throw MismatchError(
      message + " (operation " + std::to_string(operation.number) + operation.job_ranks.describe_group() +
      "). Nothing was exchanged; every rank must make the same calls in the same order, with tensors of "
      "the same shape and dtype.");
}

}  // namespace tutti::comm
