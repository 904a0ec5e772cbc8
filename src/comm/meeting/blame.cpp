#include "comm/meeting/blame.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "comm/engine/describe.h"

namespace tutti::comm {
namespace {

constexpr auto patience = std::chrono::milliseconds(700);                // a dead rank is named within a second
constexpr auto patience_after_silence = std::chrono::milliseconds(100);  // from the beginning
constexpr auto between_questions_of_silence = std::chrono::milliseconds(20);
// The first looks soon, later ones more rarely: where many ranks fail at once they share one store.
constexpr auto first_pause = std::chrono::milliseconds(10);
constexpr auto longest_pause = std::chrono::milliseconds(40);

const std::optional<Standing>& standing_of(const Standings& standings, int rank) {
  return standings.at(static_cast<std::size_t>(rank));
}

// Walks from a rank to those it waited for, and on.
class Trail {
 public:
  explicit Trail(const Standings& standings) : standings_(standings) {}

  void follow(int rank) {
    visited_.insert(rank);
    const auto& standing = standing_of(standings_, rank);
    if (!standing || standing->reason == Standing::Reason::abandoned) {
      culprits_.insert(rank);
      return;
    }
    for (const int next : standing->waiting_for) {
      if (standing->gave_up() && came_late(next)) {
        culprits_.insert(next);
      } else if (!visited_.contains(next)) {
        follow(next);
      }
      if (culprits_.contains(next) && !through_) through_ = standing;
    }
  }

  const std::set<int>& culprits() const { return culprits_; }
  /// The standing of a rank that waited for a culprit itself.
  const std::optional<Standing>& through() const { return through_; }

 private:
  // A rank that arrives after others gave up finds them gone and blames them.
  bool came_late(int rank) const {
    const auto& standing = standing_of(standings_, rank);
    return standing && standing->found_nobody() &&
           std::all_of(standing->waiting_for.begin(), standing->waiting_for.end(),
                       [&](int other) { return visited_.contains(other); });
  }

  const Standings& standings_;
  std::set<int> visited_;
  std::set<int> culprits_;
  std::optional<Standing> through_;
};

std::string without_culprit(const Standing& own) {
  if (own.reason != Standing::Reason::silent) return "the connections were closed";
  return "the launcher's store has not answered for " + describe_duration(own.timeout) +
         " (its machine or this one is cut off)";
}

std::string what_happened(const std::vector<int>& culprits, const Standing& through, const Standings& standings,
                          int rank) {
  const std::string who = describe_ranks(culprits);
  if (culprits == std::vector<int>{rank}) {
    return "the other ranks gave up waiting for this rank (" + std::to_string(rank) + ") after " +
           describe_duration(through.timeout);
  }
  const auto& standing = standing_of(standings, culprits.front());
  if (standing && standing->reason == Standing::Reason::abandoned) return who + " abandoned " + standing->where;
  if (through.reason == Standing::Reason::stopped) {
    return who + (culprits.size() == 1 ? " has been stopped for " : " have been stopped for ") +
           describe_duration(through.timeout) + " (SIGSTOP or Ctrl+Z)";
  }
  if (through.reason == Standing::Reason::silent) {
    return who + (culprits.size() == 1 ? " has" : " have") + " not been heard of for " +
           describe_duration(through.timeout) + " (the machine is cut off, or it or the process stands still)";
  }
  if (through.reason == Standing::Reason::timeout) {
    return who + " did not arrive within " + describe_duration(through.timeout);
  }
  const bool ended = through.reason == Standing::Reason::ended;
  return who + (culprits.size() == 1 ? " is" : " are") + " gone (" +
         (ended ? "the process has ended" : "connection closed") + ")";
}

}  // namespace

std::string Standing::to_text() const {
  std::ostringstream text;
  text << static_cast<int>(reason) << ' ' << operation << ' ' << timeout.count() << ' ' << waiting_for.size();
  for (const int rank : waiting_for) text << ' ' << rank;
  text << ' ' << where;
  return text.str();
}

Standing Standing::from_text(const std::string& text) {
  std::istringstream stream(text);
  Standing standing;
  int reason_number = 0;
  std::int64_t milliseconds = 0;
  std::size_t count = 0;
  stream >> reason_number >> standing.operation >> milliseconds >> count;
  standing.reason = static_cast<Reason>(reason_number);
  standing.timeout = std::chrono::milliseconds(milliseconds);
  for (int rank = 0; count > 0 && stream >> rank; --count) standing.waiting_for.push_back(rank);
  stream.ignore(1);
  standing.where.assign(std::istreambuf_iterator<char>(stream), {});
  return standing;
}

std::string to_entry(int rank, const std::string& text) {
  return std::to_string(rank) + ' ' + std::to_string(text.size()) + ' ' + text;
}

std::vector<std::optional<std::string>> posts_in(const std::string& entries, int size) {
  std::vector<std::optional<std::string>> posts(static_cast<std::size_t>(size));
  std::istringstream stream(entries);
  int rank = 0;
  std::size_t length = 0;
  while (stream >> rank >> length && stream.get() == ' ') {
    const auto begin = static_cast<std::size_t>(stream.tellg());
    if (rank < 0 || rank >= size || length > entries.size() - begin) break;
    posts[static_cast<std::size_t>(rank)] = entries.substr(begin, length);
    stream.seekg(static_cast<std::streamoff>(begin + length));
  }
  return posts;
}

bool is_complete(const Standings& standings, int rank, const std::vector<int>& ended) {
  const auto can_post = [&](int other) {
    const auto knows_of_its_end = [&](const std::optional<Standing>& standing) {
      return standing && standing->reason == Standing::Reason::ended &&
             std::ranges::find(standing->waiting_for, other) != standing->waiting_for.end();
    };
    return std::ranges::find(ended, other) == ended.end() && std::ranges::none_of(standings, knows_of_its_end);
  };
  std::set<int> seen;
  std::vector<int> left{rank};
  while (!left.empty()) {
    const int next = left.back();
    left.pop_back();
    if (!seen.insert(next).second) continue;
    const auto& standing = standing_of(standings, next);
    if (!standing && can_post(next)) return false;
    if (!standing) continue;
    for (const int other : standing->waiting_for) {
      if (!standing->is_certain() || standing_of(standings, other)) left.push_back(other);
    }
  }
  return true;
}

Verdict judge(const Standings& standings, int rank) {
  const Standing& own = *standing_of(standings, rank);
  Trail trail(standings);
  trail.follow(rank);
  const Standing& through = trail.through() ? *trail.through() : own;
  Verdict verdict;
  verdict.culprits.assign(trail.culprits().begin(), trail.culprits().end());
  // A circle: everyone in it was waiting for another one. Say whom this rank was waiting for.
  if (verdict.culprits.empty()) verdict.culprits = own.waiting_for;
  verdict.timed_out = through.gave_up();

  std::vector<int> waiting;
  for (std::size_t other = 0; other < standings.size(); ++other) {
    const bool at_fault = std::count(verdict.culprits.begin(), verdict.culprits.end(), static_cast<int>(other)) > 0;
    const auto& standing = standings[other];
    if (standing && standing->operation == own.operation && !at_fault) waiting.push_back(static_cast<int>(other));
  }
  verdict.message =
      own.where + ": " +
      (verdict.culprits.empty() ? without_culprit(own) : what_happened(verdict.culprits, through, standings, rank));
  if (!waiting.empty()) {
    verdict.message += "; " + describe_ranks(waiting) + (waiting.size() == 1 ? " was" : " were") + " waiting";
  }
  return verdict;
}

struct Inquiry::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool posted = false;
  bool unreachable = false;
  bool over = false;
  Standings standings;
  std::vector<int> ended_ranks;
  bool answered = false;
  bool ended = false;  // the thread is about to return

  void look(Bulletin& bulletin, int rank, const std::string& text) {
    try {
      bulletin.post(rank, text);
      std::unique_lock lock(mutex);
      posted = true;
      changed.notify_all();
      for (auto pause = first_pause; !over; pause = std::min(2 * pause, longest_pause)) {
        lock.unlock();
        auto ended_before = bulletin.ended();
        Standings found;
        for (const auto& post : bulletin.read()) {
          found.push_back(post ? std::optional(Standing::from_text(*post)) : std::nullopt);
        }
        lock.lock();
        standings = std::move(found);
        ended_ranks = std::move(ended_before);
        answered = true;
        changed.notify_all();
        changed.wait_for(lock, pause, [&] { return over; });
      }
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      unreachable = true;
      changed.notify_all();
    }
  }

  void end() {
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

// The bulletin may be held by a process that has stopped without closing its sockets; asking it then blocks for ever.
// So the asking is left to a thread that is not waited for without limit.
Inquiry::Inquiry(std::shared_ptr<Bulletin> bulletin, int rank, int size, Standing own)
    : shared_(std::make_shared<Shared>()),
      bulletin_(bulletin),
      rank_(rank),
      size_(size),
      holder_(bulletin->holder()),
      own_(std::move(own)) {
  thread_ = std::thread([shared = shared_, bulletin, rank, text = own_.to_text()] {
    shared->look(*bulletin, rank, text);
    shared->end();
  });
}

Inquiry::~Inquiry() {
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->changed.notify_all();
  lock.unlock();
  const bool ended = wait([&] { return shared_->ended; });
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

template <typename Done>
bool Inquiry::wait(const Done& done) {
  const auto until = Clock::now() + patience;
  bool answers = own_.reason != Standing::Reason::silent;
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    const auto end = answers ? until : std::min(until, begun_ + patience_after_silence);
    const auto now = Clock::now();
    if (shared_->changed.wait_until(lock, std::min(end, now + between_questions_of_silence), done)) return true;
    if (Clock::now() >= end) return false;
    if (!answers) continue;
    lock.unlock();
    answers = bulletin_->answers();
    lock.lock();
  }
}

void Inquiry::wait_until_posted() {
  (void)wait([&] { return shared_->posted || shared_->unreachable; });
}

Verdict Inquiry::verdict() {
  (void)wait([&] {
    return shared_->unreachable || (shared_->answered && is_complete(shared_->standings, rank_, shared_->ended_ranks));
  });
  std::unique_lock lock(shared_->mutex);
  Standings standings(static_cast<std::size_t>(size_));
  if (shared_->answered) standings = shared_->standings;
  const bool unreachable = shared_->unreachable;
  const bool lost = unreachable || !shared_->answered;
  lock.unlock();
  standings.at(static_cast<std::size_t>(rank_)) = own_;
  // A holder that left word is gone for the reason that it gave.
  const bool holder_is_silent = holder_ >= 0 && !standing_of(standings, holder_);
  if (!lost || !holder_is_silent || own_.gave_up()) return judge(standings, rank_);

  Verdict verdict{.culprits = {holder_}, .timed_out = false, .message = {}};
  const std::string who = own_.where + ": " + describe_ranks(verdict.culprits) + ", which holds the store, ";
  verdict.message =
      who + (unreachable ? "is gone (neither it nor the store answers)"
                         : "has not answered for " + describe_duration(patience) + " (nor has its store)");
  return verdict;
}

}  // namespace tutti::comm
