#include "tutti/detail/train/main_process_first.h"

#include <ATen/Functions.h>

#include <exception>
#include <utility>
#include <vector>

#include "train/tensor_headers.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

enum class ScopeOutcome : std::uint8_t { waited, succeeded, failed };

struct ScopeOutcomes {
  at::Tensor ranks{};  // uint8 [size]: the outcome of each rank
  Work work{};
};

/// The collective at which waiting ranks and first ranks meet: each contributes its outcome.
ScopeOutcomes gather_outcomes(const Communicator& communicator, ScopeOutcome outcome, const CallOptions& call) {
  ScopeOutcomes outcomes{.ranks = at::empty({communicator.size()}, at::kByte)};
  const at::Tensor local = at::full({1}, static_cast<int>(outcome), at::kByte);
  outcomes.work = communicator.all_gather(outcomes.ranks, local, call);
  return outcomes;
}

}  // namespace

FirstProcessScope::FirstProcessScope(const Communicator& communicator, bool first, const std::string& what,
                                     const CallOptions& call)
    : communicator_(communicator),
      first_(first),
      name_(what),
      call_(named(what, call)),
      exceptions_(std::uncaught_exceptions()) {
  if (first_) return;
  const ScopeOutcomes outcomes = gather_outcomes(communicator_, ScopeOutcome::waited, call_);
  outcomes.work.wait();
  std::vector<int> failed;
  std::string names;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const auto outcome = outcomes.ranks.const_data_ptr<std::uint8_t>()[rank];
    if (outcome != static_cast<std::uint8_t>(ScopeOutcome::failed)) continue;
    failed.push_back(rank);
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  if (!failed.empty())
    throw PeerError(name_ + ": " + names + " failed inside the scope, so its work is not done", failed);
}

FirstProcessScope::~FirstProcessScope() noexcept(false) {
  if (!first_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    gather_outcomes(communicator_, ScopeOutcome::succeeded, call_).work.wait();
    return;
  }
  try {
    gather_outcomes(communicator_, ScopeOutcome::failed, call_);  // not waited for: an exception is unwinding
  } catch (...) {
    // The other ranks detect the failure through the transport.
  }
}

}  // namespace tutti
