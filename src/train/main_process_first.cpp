#include "tutti/train/main_process_first.h"

#include <ATen/Functions.h>

#include <exception>
#include <utility>
#include <vector>

#include "train/tensor_headers.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

enum class Standing : std::uint8_t { waited, succeeded, failed };

struct Meeting {
  at::Tensor ranks{};  // the Standing of each
  Work work{};
};

Meeting meet(const Communicator& communicator, Standing mine, const CallOptions& call) {
  Meeting meeting{.ranks = at::empty({communicator.size()}, at::kByte)};
  const at::Tensor own = at::full({1}, static_cast<int>(mine), at::kByte);
  meeting.work = communicator.all_gather(meeting.ranks, own, call);
  return meeting;
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
  const Meeting meeting = meet(communicator_, Standing::waited, call_);
  meeting.work.wait();
  std::vector<int> failed;
  std::string names;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const auto standing = meeting.ranks.const_data_ptr<std::uint8_t>()[rank];
    if (standing != static_cast<std::uint8_t>(Standing::failed)) continue;
    failed.push_back(rank);
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  if (!failed.empty()) throw PeerError(name_ + ": " + names + " failed inside, so nothing is prepared", failed);
}

FirstProcessScope::~FirstProcessScope() noexcept(false) {
  if (!first_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    meet(communicator_, Standing::succeeded, call_).work.wait();
    return;
  }
  try {
    meet(communicator_, Standing::failed, call_);  // nobody here waits for it
  } catch (...) {
    // Then they learn it from the transport.
  }
}

}  // namespace tutti
