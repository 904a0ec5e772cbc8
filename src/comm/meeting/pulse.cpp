#include "comm/meeting/pulse.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/meeting/silence.h"

namespace tutti::comm {
namespace {

constexpr auto between_beats = std::chrono::milliseconds(150);
constexpr auto between_looks = std::chrono::milliseconds(50);
constexpr auto longest_good_bye = std::chrono::milliseconds(300);

std::string key_of(int rank) {
  return "beat/" + std::to_string(rank);
}

std::vector<std::uint8_t> as_bytes(std::int64_t number) {
  const std::string text = std::to_string(number);
  return {text.begin(), text.end()};
}

std::int64_t as_number(const std::vector<std::uint8_t>& bytes) {
  return std::stoll(std::string(bytes.begin(), bytes.end()));
}

}  // namespace

// What the threads share. A request to a store that is cut off ends only with the connection, so nobody waits for the
// thread that asks.
struct Pulse::Shared {
  Shared(c10::intrusive_ptr<c10d::Store> store_, int rank_, const std::vector<int>& watched, int holder,
         std::chrono::milliseconds patience)
      : store(std::move(store_)), rank(rank_), silence(watched, holder, patience, Clock::now()) {
    for (const int other : watched) keys.push_back(key_of(other));
  }

  c10::intrusive_ptr<c10d::Store> store;  // of the asking thread
  int rank;
  std::vector<std::string> keys;

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;    // the pulse is let go of
  bool failed = false;  // because of an exception
  int running = 2;      // threads
  Silence silence;
  std::optional<std::vector<int>> silent;
  std::list<Wake> wakes;

  void ask() {
    try {
      std::unique_lock lock(mutex);
      for (std::int64_t beat = 1; !over && !silent; ++beat) {
        silence.asked(Clock::now());
        lock.unlock();
        store->set(key_of(rank), as_bytes(beat));
        std::vector<std::int64_t> beats;
        for (const auto& value : store->multiGet(keys)) beats.push_back(as_number(value));
        lock.lock();
        silence.heard(beats, Clock::now());
        changed.wait_for(lock, between_beats, [&] { return over || silent.has_value(); });
      }
      const bool in_order = !silent && !failed;
      lock.unlock();
      if (in_order) store->set(key_of(rank), as_bytes(has_left));
    } catch (const std::exception&) {
      // The store has ended with its process.
      const std::lock_guard lock(mutex);
      over = over || silence.lost();
      changed.notify_all();
    }
  }

  void watch() {
    std::unique_lock lock(mutex);
    while (!over && !silent) {
      changed.wait_for(lock, between_looks, [&] { return over; });
      auto ranks = silence.silent(Clock::now());
      if (ranks.empty() || over) continue;
      std::erase(ranks, -1);
      silent = std::move(ranks);
      for (const Wake& wake : wakes) wake(*silent);
      changed.notify_all();
    }
  }

  void end_thread() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }
};

Pulse::Pulse(const Rendezvous& rendezvous, int rank, int size, const std::vector<int>& watched,
             std::chrono::milliseconds patience, std::chrono::milliseconds connect_timeout)
    : patience_(patience) {
  const auto store = rendezvous.store->clone();
  store->set(key_of(rank), as_bytes(0));
  // A number that is asked for and does not stand there yet would be waited for.
  (void)exchange(rendezvous, "pulse", rank, size, "", connect_timeout);
  // How the holder of the store leaves matters to all.
  auto all_watched = watched;
  holds_store_ = rendezvous.holder == rank;
  if (!holds_store_ && rendezvous.holder >= 0 && std::ranges::find(watched, rendezvous.holder) == watched.end()) {
    all_watched.push_back(rendezvous.holder);
  }
  shared_ = std::make_shared<Shared>(store, rank, all_watched, rendezvous.holder, patience);
  for (const auto run : {&Shared::ask, &Shared::watch}) {
    std::thread([shared = shared_, run] {
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
  const bool in_order = !shared_->failed && !shared_->silent;
  lock.unlock();
  // The others hear the good-bye before the store is gone.
  if (holds_store_ && in_order) std::this_thread::sleep_for(2 * between_beats);
}

std::optional<std::vector<int>> Pulse::silent() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->silent;
}

std::shared_ptr<void> Pulse::when_silent(Wake wake) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->silent) {
    wake(*shared_->silent);
    return nullptr;
  }
  auto& wakes = shared_->wakes;
  const auto place = wakes.insert(wakes.end(), std::move(wake));
  return {shared_.get(), [shared = shared_, place](void*) {
            const std::lock_guard lock_again(shared->mutex);
            shared->wakes.erase(place);
          }};
}

void GroupPulse::throw_if_silent() const {
  const auto silent = pulse_ ? pulse_->silent() : std::nullopt;
  if (!silent) return;
  if (auto members = members_of(*silent)) {
    throw TransferError(TransferError::Kind::silent, std::move(*members), "not heard of", pulse_->patience());
  }
}

GroupPulse GroupPulse::of(const std::vector<int>& members) const {
  std::vector<int> job_ranks;
  for (const int member : members) job_ranks.push_back(job_ranks_.at(static_cast<std::size_t>(member)));
  return {pulse_, std::move(job_ranks)};
}

// By their ranks in the group; nullopt where it can do without the silent ones. Nobody can without the store.
std::optional<std::vector<int>> GroupPulse::members_of(const std::vector<int>& silent) const {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < job_ranks_.size(); ++rank) {
    if (std::ranges::find(silent, job_ranks_[rank]) != silent.end()) members.push_back(static_cast<int>(rank));
  }
  if (members.empty() && !silent.empty()) return std::nullopt;
  return members;
}

}  // namespace tutti::comm
