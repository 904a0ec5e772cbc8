#include "comm/mpi/remains.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "comm/mpi/job.h"

namespace tutti::comm {
namespace {

/// How long a process waits at its end for the ranks of a job in which something failed. Whoever ends without them
/// makes mpirun end them all.
constexpr std::chrono::milliseconds for_the_others = std::chrono::seconds(20);

bool free_if_idle(const MpiFunctions& functions, MpiMail& mail) {
  if (mail.message == nullptr) return true;
  if (!functions.is_idle(mail.message)) return false;
  functions.free_message(std::exchange(mail.message, nullptr));
  return true;
}

}  // namespace

void erase_idle(const MpiFunctions& functions, MpiMails& mails) {
  std::erase_if(mails, [&](const auto& mail) { return free_if_idle(functions, *mail); });
}

const std::shared_ptr<MpiRemains>& MpiRemains::of_process() {
  static const auto remains = std::make_shared<MpiRemains>();
  return remains;
}

void MpiRemains::add(const MpiFunctions& functions, MpiGroup* group, MpiMails sent, MpiMails received) {
  const std::lock_guard lock(mutex_);
  partings_.push_back({.group = group, .sent = std::move(sent), .received = std::move(received), .heard = {}});
  std::erase_if(partings_, [&](Parting& parting) {
    erase_idle(functions, parting.sent);
    const auto still_out = std::partition(parting.received.begin(), parting.received.end(),
                                          [&](const auto& mail) { return free_if_idle(functions, *mail); });
    std::move(parting.received.begin(), still_out, std::back_inserter(parting.heard));
    parting.received.erase(parting.received.begin(), still_out);
    if (!parting.sent.empty() || !parting.received.empty()) return false;
    const auto in_order = [](const auto& mail) { return *mail->block.data == std::byte{1}; };
    if (std::ranges::all_of(parting.heard, in_order)) {
      functions.free_group(parting.group);
    } else {
      ++never_freed_;
    }
    return true;
  });
}

void MpiRemains::keep(MpiMails unfinished) {
  const std::lock_guard lock(mutex_);
  std::ranges::move(unfinished, std::back_inserter(kept_));
}

void MpiRemains::note_failure() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

bool MpiRemains::failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

std::size_t MpiRemains::groups_kept() {
  const std::lock_guard lock(mutex_);
  return partings_.size() + never_freed_;
}

void end_mpi_at_exit() {
  MpiRemains::of_process();  // lives longer than what is registered after it
  std::atexit([] {
    const bool failed = MpiRemains::of_process()->failed();
    mpi_functions().finish(failed ? static_cast<long>(for_the_others.count()) : -1);
  });
}

}  // namespace tutti::comm
