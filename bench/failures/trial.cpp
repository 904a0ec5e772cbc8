#include "failures/trial.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace tutti::bench {
namespace {

bool names_failed_ranks(const Moment& moment, const std::string& failure, int ranks) {
  const auto is_failed = [&](int rank) {
    if (failure != "cut") return rank == ranks - 1;
    const int of_node = ranks / 2;
    return rank / of_node != moment.rank / of_node;
  };
  return !moment.named.empty() && std::ranges::all_of(moment.named, is_failed);
}

}  // namespace

bool add_trial(FailuresRow& row, const std::vector<Moment>& moments, int ranks) {
  std::optional<std::int64_t> failed;
  std::optional<std::int64_t> last;
  std::size_t knew = 0;
  for (const Moment& moment : moments) {
    if (moment.said.empty()) {
      failed = moment.nanoseconds;
      if (moment.closing >= 0) row.closing.push_back(moment.closing);
      continue;
    }
    last = std::max(last.value_or(moment.nanoseconds), moment.nanoseconds);
    if (names_failed_ranks(moment, row.failure, ranks)) ++knew;
  }
  constexpr double nanosecond = 1e-9;
  if (failed && last) row.seconds.push_back(nanosecond * static_cast<double>(*last - *failed));
  // A rank that cut its own link, or that is in another call, survives as well.
  const bool all = row.failure == "cut" || row.failure == "astray";
  const auto survivors = static_cast<std::size_t>(all ? ranks : ranks - 1);
  const bool fine = failed && knew == survivors && moments.size() == survivors + 1;
  row.misnamed += fine ? 0 : 1;
  return fine;
}

}  // namespace tutti::bench
