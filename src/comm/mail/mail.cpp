#include "comm/mail/mail.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

std::uint64_t number_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;  // FNV-1a
  return hash;
}

}  // namespace

PostOffice& OfficePlace::open() {
  const std::lock_guard lock(mutex_);
  if (!office_) office_ = std::make_unique<PostOffice>(rendezvous_, rank_, host_());
  return *office_;
}

PostOffice* OfficePlace::opened() {
  const std::lock_guard lock(mutex_);
  return office_.get();
}

Mail::Mail(std::shared_ptr<OfficePlace> place, const std::string& group, std::vector<int> job_ranks, int rank)
    : place_(std::move(place)), group_(number_of(group)), job_ranks_(std::move(job_ranks)), rank_(rank) {}

void Mail::send(OrderPtr order) {
  const int peer = job_ranks_.at(static_cast<std::size_t>(order->peer));
  const Letter letter{.tag = order->tag, .group = group_, .source = rank_, .bytes = order->memory.size()};
  place_->open().send(peer, letter, std::move(order));
}

void Mail::receive(OrderPtr order) {
  place_->open().receive(group_, std::move(order));
}

void Mail::end(std::exception_ptr failure, bool sends_too) noexcept {
  try {
    if (auto* const office = place_->opened()) office->end(group_, rank_, job_ranks_, std::move(failure), sends_too);
  } catch (const std::exception&) {
    // Without memory nobody can be told; connections tell when the process ends.
  }
}

std::shared_ptr<Mail> Mail::of(const std::vector<int>& members, const std::string& group) const {
  std::vector<int> job_ranks;
  for (const int member : members) job_ranks.push_back(job_ranks_.at(static_cast<std::size_t>(member)));
  const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  return std::make_shared<Mail>(place_, group, std::move(job_ranks), rank);
}

}  // namespace tutti::comm
