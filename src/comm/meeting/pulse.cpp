#include "comm/meeting/pulse.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/meeting/news.h"
#include "comm/meeting/silence.h"
#include "comm/meeting/vital_signs.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

constexpr auto between_beats_in_a_hurry = std::chrono::milliseconds(15);
constexpr auto longest_hurry = std::chrono::seconds(1);
constexpr auto between_looks = std::chrono::milliseconds(100);
constexpr auto longest_good_bye = std::chrono::milliseconds(300);
constexpr auto on_their_way = std::chrono::milliseconds(50);

}  // namespace

// What the threads share. A request to a store that is cut off ends only with the connection, so nobody waits for the
// thread that asks.
struct Pulse::Shared {
  Shared(VitalSigns signs_, int holder_, const PulseOptions& options)
      : signs(std::move(signs_)),
        holder(holder_),
        holds_store(holder_ == options.rank),
        node_of_rank(options.node_of_rank),
        pause(between_beats(static_cast<int>(options.node_of_rank.size()))),
        silence(signs.watched(), holder, options.patience + pause - between_beats(1), Clock::now()) {}

  VitalSigns signs;  // of the asking thread
  const int holder;
  const bool holds_store;
  const std::vector<int> node_of_rank;
  const std::chrono::milliseconds pause;

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;    // the pulse is let go of
  bool failed = false;  // because of an exception
  int running = 2;      // threads
  Deadline hurries_until;
  Silence silence;
  GivenUp given_up;
  std::vector<int> ended;
  News found;  // by this rank, and not told yet
  std::list<Wake> wakes;

  bool hurries() const { return Clock::now() < hurries_until; }

  void ask() {
    try {
      std::unique_lock lock(mutex);
      const auto ends = [&] { return over; };
      while (!over) {
        silence.asked(Clock::now());
        lock.unlock();
        const auto look = signs.beat();
        lock.lock();
        hear(look);
        tell(lock);
        if (!signs.is_in_doubt()) changed.wait_for(lock, pause, [&] { return over || hurries(); });
        if (signs.is_in_doubt() || hurries()) changed.wait_for(lock, between_beats_in_a_hurry, ends);
      }
      // How the holder of the store leaves matters to all.
      if (holds_store && !failed) found.left.push_back(holder);
      tell(lock);
      if (failed) return;
      lock.unlock();
      signs.say_good_bye();
    } catch (const std::exception&) {
      // The store has ended with its process.
      const std::lock_guard lock(mutex);
      over = over || silence.lost();
      changed.notify_all();
    }
  }

  void hear(const VitalSigns::Look& look) {
    silence.heard(look.beats, Clock::now());
    if (look.ended) found.ended.push_back(*look.ended);
    if (look.news) {
      ended = look.news->ended;
      if (std::ranges::find(look.news->left, holder) != look.news->left.end()) silence.holder_says_good_bye();
      give_up(look.news->silent);
    }
    judge();
  }

  void tell(std::unique_lock<std::mutex>& lock) {
    const auto news = std::exchange(found, {});
    if (news.to_entries().empty()) return;
    lock.unlock();
    signs.tell(news);
    lock.lock();
  }

  /// Whether this rank has waited for any of the others for long enough.
  void judge() {
    const auto found_now = silence.look(Clock::now());
    if (found_now.store && !given_up.store) {
      given_up.store = true;
      add_to_given_up(ranks_of_holders_machine());
      wake_all();
    }
    for (const int rank : give_up(found_now.ranks)) found.silent.push_back(rank);
  }

  std::vector<int> ranks_of_holders_machine() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; holder >= 0 && rank < node_of_rank.size(); ++rank) {
      if (node_of_rank[rank] == node_of_rank[static_cast<std::size_t>(holder)]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  /// Returns those that had not been before.
  std::vector<int> give_up(const std::vector<int>& ranks) {
    auto more = add_to_given_up(ranks);
    if (!more.empty()) wake_all();
    return more;
  }

  std::vector<int> add_to_given_up(const std::vector<int>& ranks) {
    std::vector<int> more;
    std::ranges::set_difference(ranks, given_up.ranks, std::back_inserter(more));
    given_up.ranks.insert(given_up.ranks.end(), more.begin(), more.end());
    std::ranges::sort(given_up.ranks);
    return more;
  }

  void wake_all() {
    for (const Wake& wake : wakes) wake(given_up);
    changed.notify_all();
  }

  void watch() {
    std::unique_lock lock(mutex);
    while (!over) {
      changed.wait_for(lock, between_looks, [&] { return over; });
      if (!over) judge();
    }
  }

  void end_thread() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }
};

Pulse::Pulse(const Rendezvous& rendezvous, const PulseOptions& options) : patience_(options.patience) {
  const auto& nodes = options.node_of_rank;
  const auto processes = exchange(rendezvous, "pulse", options.rank, static_cast<int>(nodes.size()),
                                  VitalSigns::own_process(), options.connect_timeout);
  VitalSigns signs(rendezvous.store->clone(), options.rank, nodes, processes);
  shared_ = std::make_shared<Shared>(std::move(signs), rendezvous.holder, options);
  for (const auto run : {&Shared::ask, &Shared::watch}) {
    std::thread([shared = shared_, run] {
      name_this_thread(run == &Shared::ask ? "tutti-pulse" : "tutti-silence");
      ((*shared).*run)();
      shared->end_thread();
    }).detach();
  }
}

Pulse::~Pulse() {
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->failed = std::uncaught_exceptions() > 0;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, longest_good_bye, [&] { return shared_->running == 0; });
  const bool tells_others = shared_->holds_store && (!shared_->failed || !shared_->given_up.ranks.empty());
  const auto pause = shared_->pause;
  lock.unlock();
  // The others hear the good-bye, or who was given up, before the store is gone.
  if (tells_others) std::this_thread::sleep_for(pause + on_their_way);
}

GivenUp Pulse::given_up() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->given_up;
}

std::vector<int> Pulse::ended() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->ended;
}

void Pulse::hurry() {
  const std::lock_guard lock(shared_->mutex);
  shared_->hurries_until = Clock::now() + longest_hurry;
  shared_->changed.notify_all();
}

std::shared_ptr<void> Pulse::when_given_up(Wake wake) {
  const std::lock_guard lock(shared_->mutex);
  if (const auto& given_up = shared_->given_up; given_up.store || !given_up.ranks.empty()) wake(given_up);
  auto& wakes = shared_->wakes;
  const auto place = wakes.insert(wakes.end(), std::move(wake));
  return {shared_.get(), [shared = shared_, place](void*) {
            const std::lock_guard lock_again(shared->mutex);
            shared->wakes.erase(place);
          }};
}

void GroupPulse::throw_if_silent() const {
  if (!pulse_) return;
  const auto given_up = pulse_->given_up();
  if (!concerns(given_up)) return;
  throw TransferError(TransferError::Kind::silent, members_among(given_up.ranks), "not heard of", pulse_->patience());
}

GroupPulse GroupPulse::of(const std::vector<int>& members) const {
  std::vector<int> job_ranks;
  for (const int member : members) job_ranks.push_back(job_ranks_.at(static_cast<std::size_t>(member)));
  return {pulse_, std::move(job_ranks)};
}

std::vector<int> GroupPulse::ended() const {
  return pulse_ ? members_among(pulse_->ended()) : std::vector<int>();
}

void GroupPulse::hurry() const {
  if (pulse_) pulse_->hurry();
}

std::vector<int> GroupPulse::members_among(const std::vector<int>& job_ranks) const {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < job_ranks_.size(); ++rank) {
    if (std::ranges::find(job_ranks, job_ranks_[rank]) != job_ranks.end()) members.push_back(static_cast<int>(rank));
  }
  return members;
}

}  // namespace tutti::comm
