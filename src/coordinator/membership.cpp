#include "coordinator/membership.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace tutti::coordinator {
namespace {

constexpr Milliseconds base_interval{250};
constexpr Milliseconds interval_per_rank{4};

std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

/// min(250 ms, a quarter of the timeout), longer for many ranks so that the coordinator's CPU time stays bounded.
Milliseconds heartbeat_interval(int world_size, Milliseconds heartbeat_timeout) {
  return std::max(Milliseconds(1),
                  std::min(std::max(base_interval, interval_per_rank * world_size), heartbeat_timeout / 4));
}

}  // namespace

Membership::Membership(int world_size, Milliseconds heartbeat_timeout)
    : world_size_(world_size),
      heartbeat_timeout_(heartbeat_timeout),
      interval_(heartbeat_interval(world_size, heartbeat_timeout)),
      slack_(std::max(Milliseconds(0), interval_ - base_interval)),
      entries_(static_cast<std::size_t>(world_size)) {}

std::string Membership::contradiction(const Member& member) const {
  const auto differs = [&](const char* name, const std::string& has, const std::string& reference,
                           const std::string& of) {
    return rank_text(member.rank) + " has " + name + " " + has + " where " + of + " has " + reference;
  };
  if (member.world_size != world_size_) {
    return differs("a WORLD_SIZE of", std::to_string(member.world_size), std::to_string(world_size_),
                   "the coordinator") +
           "; all launchers need the same -n and --nnodes";
  }
  if (first_ && member.version != first_->version) {
    return differs("version", member.version, first_->version, rank_text(first_->rank));
  }
  return "";
}

Membership::HelloResult Membership::hello(const Hello& hello, Time now) {
  const auto& member = hello.member;
  const bool is_in_range = member.rank >= 0 && member.rank < world_size_;
  const bool is_same = is_in_range && entry(member.rank).state != State::absent && entry(member.rank).key == hello.key;
  if (is_in_range && has_ended(member.rank) && !is_same) {  // its next program may have another world size
    return {Verdict::not_yet, rank_text(member.rank) + " has left or failed, and other ranks are still in the job"};
  }
  if (const auto why = contradiction(member); !why.empty()) {
    // A rank that the job does not wait for may belong to another job and must not end this one.
    const bool is_awaited = has_joined_ < world_size_ && member.rank >= 0 && member.rank < member.world_size &&
                            (!is_in_range || entry(member.rank).state == State::absent);
    return {is_awaited ? Verdict::contradicted : Verdict::refused, why};
  }
  if (!hello.has_known_format) {
    return {Verdict::refused, rank_text(member.rank) + " has version " + member.version +
                                  ", the coordinator has wire format " + std::to_string(wire_version)};
  }
  if (first_ && member.restart < first_->restart) {
    return {Verdict::refused, rank_text(first_->rank) + " has been restarted after a failure (restart " +
                                  std::to_string(first_->restart) + "), and " + rank_text(member.rank) +
                                  " belongs to restart " + std::to_string(member.restart)};
  }
  if (!is_in_range) {
    return {Verdict::refused, rank_text(member.rank) + " is outside the world size " + std::to_string(world_size_)};
  }
  auto& known = entry(member.rank);
  if (known.state == State::failed) return failed_before(member);
  if (known.state != State::absent && !is_same) {
    // The process of a rank that is disconnected may have ended: the next one comes again until the coordinator knows.
    const bool may_have_ended = known.state == State::disconnected || is_later_attempt(member);
    const auto verdict = may_have_ended ? Verdict::not_yet : Verdict::refused;
    return {verdict, rank_text(member.rank) + " is in the job already: is this another job with the same " +
                         "address and port, or was a rank started twice?"};
  }
  if (known.state == State::left) return {Verdict::refused, rank_text(member.rank) + " has left"};
  if (!is_same) {
    ++has_joined_;
    if (!first_) first_ = member;
  }
  known = {.state = State::present, .member = member, .key = hello.key, .last_heard = now};
  return {is_same ? Verdict::resumed : Verdict::accepted, ""};
}

Membership::HelloResult Membership::failed_before(const Member& member) {
  return {Verdict::refused, rank_text(member.rank) + " has failed, and the job has acted upon it"};
}

bool Membership::replaces_absent(const Member& member) const {
  return is_later_attempt(member) && contradiction(member).empty() && member.rank >= 0 && member.rank < world_size_ &&
         entry(member.rank).state == State::absent;
}

void Membership::heard_from(int rank, Time now) {
  if (entry(rank).state != State::present) return;
  entry(rank).last_heard = now;
  entry(rank).is_warned = false;
}

bool Membership::leave(int rank) {
  if (!is_active(rank)) return false;
  entry(rank).state = State::left;
  return true;
}

bool Membership::disconnected(int rank, Disconnect how, Time now) {
  auto& known = entry(rank);
  if (known.state != State::present) return false;
  if (how == Disconnect::closed) {
    known.state = State::failed;
    return true;
  }
  known.state = State::disconnected;
  known.how = how;
  known.disconnected_at = now;
  return false;
}

bool Membership::process_exited(int rank) {
  if (rank < 0 || rank >= world_size_ || has_ended(rank)) return false;
  entry(rank).state = State::failed;
  return true;
}

void Membership::stalled(Time::duration duration, Time now) {
  for (auto& known : entries_) {
    known.last_heard = std::min(known.last_heard + duration, now);
    known.disconnected_at = std::min(known.disconnected_at + duration, now);
  }
}

// The rank, or all of its node if the others are late too: a machine that is cut or stopped is one event. Their last
// heartbeats may be one interval apart.
std::vector<int> Membership::overdue_with(int rank, Time now, Milliseconds limit) const {
  std::vector<int> ranks;
  for (int peer = 0; peer < world_size_; ++peer) {
    const auto& known = entry(peer);
    if (!is_active(peer) || known.member.node != entry(rank).member.node) continue;
    if (now - known.last_heard < limit - interval_) return {rank};
    ranks.push_back(peer);
  }
  return ranks;
}

std::vector<FailedRanks> Membership::judge(Time now, const std::function<bool(int)>& acknowledges) {
  std::vector<FailedRanks> found;
  for (int rank = 0; rank < world_size_; ++rank) {
    auto& known = entry(rank);
    if (!is_active(rank)) continue;
    // While a rank is alone, no peer has to be told of its reset.
    if (known.state == State::disconnected && known.how == Disconnect::reset && has_joined_ > 1 &&
        now - known.disconnected_at >= reset_grace) {
      known.state = State::failed;
      found.push_back({.ranks = {rank}, .cause = Cause::exited});
      continue;
    }
    const auto unheard_for = now - known.last_heard;
    const bool has_failed = unheard_for >= failure_limit();
    if (!has_failed && (unheard_for < warning_limit() || known.is_warned)) continue;
    FailedRanks event{.ranks = overdue_with(rank, now, has_failed ? failure_limit() : warning_limit()),
                      .cause = Cause::stopped,
                      .is_warning = !has_failed};
    for (const int peer : event.ranks) {
      if (entry(peer).state == State::disconnected || !acknowledges(peer)) event.cause = Cause::unreachable;
      entry(peer).is_warned = true;
      if (has_failed) entry(peer).state = State::failed;
    }
    found.push_back(std::move(event));
  }
  return found;
}

std::vector<int> Membership::to_probe(Time now) const {
  std::vector<int> ranks;
  const auto limit = std::min(warning_limit(), failure_limit()) / 2;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (entry(rank).state == State::present && now - entry(rank).last_heard >= limit) ranks.push_back(rank);
  }
  return ranks;
}

bool Membership::is_active(int rank) const {
  return entry(rank).state == State::present || entry(rank).state == State::disconnected;
}

bool Membership::has_ended(int rank) const {
  return entry(rank).state == State::left || entry(rank).state == State::failed;
}

std::set<Nonce> Membership::keys() const {
  std::set<Nonce> keys;
  for (const auto& known : entries_) {
    if (known.key != Nonce{}) keys.insert(known.key);
  }
  return keys;
}

bool Membership::has_finished() const {
  return std::ranges::none_of(std::views::iota(0, world_size_), [this](int rank) { return is_active(rank); });
}

}  // namespace tutti::coordinator
