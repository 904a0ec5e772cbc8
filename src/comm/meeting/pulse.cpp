#include "comm/meeting/pulse.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "comm/engine/process.h"
#include "comm/meeting/given_up.h"
#include "comm/meeting/silence.h"
#include "comm/meeting/store_bytes.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

constexpr auto between_beats_in_a_hurry = std::chrono::milliseconds(15);
constexpr auto longest_hurry = std::chrono::seconds(1);
constexpr auto between_looks = std::chrono::milliseconds(100);
constexpr int beats_between_looks_at_process = 4;
constexpr auto longest_good_bye = std::chrono::milliseconds(300);
constexpr auto on_their_way = std::chrono::milliseconds(50);
// A good-bye may still be on its way when the process has ended already.
constexpr int looks_at_the_ended = 2;
constexpr const char* given_up_key = "given-up";

std::string key_of(int rank) {
  return "beat/" + std::to_string(rank);
}

std::string to_text(const ProcessIdentity& process) {
  std::ostringstream text;
  text << process.number << ' ' << process.namespace_device << ' ' << process.namespace_inode;
  return text.str();
}

// A process of this machine; nullopt where its number means nothing here.
std::optional<ProcessWatch> watch_over(const std::string& identity) {
  ProcessIdentity process;
  std::istringstream text(identity);
  text >> process.number >> process.namespace_device >> process.namespace_inode;
  if (!text || !this_process().sees(process)) return std::nullopt;
  return ProcessWatch(process.number);
}

}  // namespace

// What the threads share. A request to a store that is cut off ends only with the connection, so nobody waits for the
// thread that asks.
struct Pulse::Shared {
  Shared(c10::intrusive_ptr<c10d::Store> store_, const PulseOptions& options_, int holder)
      : store(std::move(store_)),
        options(options_),
        pause(between_beats(options.size)),
        silence(options.watched, holder, options.patience + pause - between_beats(1), Clock::now()) {
    for (const int other : options.watched) keys.push_back(key_of(other));
    keys.emplace_back(given_up_key);
  }

  c10::intrusive_ptr<c10d::Store> store;  // of the asking thread
  const PulseOptions options;
  const std::chrono::milliseconds pause;
  std::vector<std::string> keys;
  std::optional<ProcessWatch> neighbour;  // for the asking thread

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;    // the pulse is let go of
  bool failed = false;  // because of an exception
  int running = 2;      // threads
  Deadline hurries_until;
  Silence silence;
  std::optional<std::vector<int>> silent;
  std::vector<int> ended;
  GivenUp found;  // by this rank, and not told yet
  std::list<Wake> wakes;

  bool hurries() const { return Clock::now() < hurries_until; }

  void ask() {
    try {
      int looks = 0;  // in which the neighbour's process had ended
      std::unique_lock lock(mutex);
      for (std::int64_t beat = 1; !over && !silent; ++beat) {
        silence.asked(Clock::now());
        const bool in_haste = hurries();
        lock.unlock();
        const bool looks_at_process = in_haste || looks > 0 || beat % beats_between_looks_at_process == 0;
        const bool has_ended = looks_at_process && neighbour && neighbour->state() == ProcessState::ended;
        store->set(key_of(options.rank), as_bytes(std::to_string(beat)));
        const auto answer = store->multiGet(keys);
        lock.lock();
        hear(answer);
        looks = has_ended && !silence.has_said_good_bye(options.neighbour) ? looks + 1 : 0;
        if (looks == looks_at_the_ended) {
          found.ended.push_back(options.neighbour);
          tell(lock);
        }
        const bool soon = looks > 0 && looks < looks_at_the_ended;
        const auto ends = [&] { return over || silent.has_value(); };
        if (!soon) changed.wait_for(lock, pause, [&] { return ends() || hurries(); });
        if (soon || hurries()) changed.wait_for(lock, between_beats_in_a_hurry, ends);
      }
      tell(lock);
      const bool in_order = !silent && !failed;
      lock.unlock();
      if (in_order) store->set(key_of(options.rank), as_bytes(std::to_string(has_left)));
    } catch (const std::exception&) {
      // The store has ended with its process.
      const std::lock_guard lock(mutex);
      over = over || silence.lost();
      changed.notify_all();
    }
  }

  /// What stands at the keys.
  void hear(const std::vector<std::vector<std::uint8_t>>& answer) {
    std::vector<std::int64_t> beats;
    for (std::size_t i = 0; i + 1 < answer.size(); ++i) beats.push_back(std::stoll(as_text(answer[i])));
    silence.heard(beats, Clock::now());
    auto told = GivenUp::from_entries(as_text(answer.back()), options.size);
    ended = std::move(told.ended);
    if (!silent && !told.silent.empty()) give_up(std::move(told.silent));
    if (!silent) judge();
  }

  void tell(std::unique_lock<std::mutex>& lock) {
    const auto entries = std::exchange(found, {}).to_entries();
    if (entries.empty()) return;
    lock.unlock();
    store->append(given_up_key, as_bytes(entries));
    lock.lock();
  }

  void give_up(std::vector<int> ranks) {
    silent = std::move(ranks);
    for (const Wake& wake : wakes) wake(*silent);
    changed.notify_all();
  }

  void watch() {
    std::unique_lock lock(mutex);
    while (!over && !silent) {
      changed.wait_for(lock, between_looks, [&] { return over || silent.has_value(); });
      if (!over && !silent) judge();
    }
  }

  /// Whether this rank has waited for long enough for any.
  void judge() {
    auto ranks = silence.silent(Clock::now());
    if (ranks.empty()) return;
    std::erase(ranks, -1);
    found.silent = ranks;
    give_up(std::move(ranks));
  }

  void end_thread() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }
};

Pulse::Pulse(const Rendezvous& rendezvous, const PulseOptions& options) : patience_(options.patience) {
  const auto store = rendezvous.store->clone();
  // What is asked for and does not stand there yet would be waited for.
  store->set(key_of(options.rank), as_bytes("0"));
  store->set(given_up_key, as_bytes(""));
  const auto processes =
      exchange(rendezvous, "pulse", options.rank, options.size, to_text(this_process()), options.connect_timeout);
  // How the holder of the store leaves matters to all.
  auto all = options;
  holds_store_ = rendezvous.holder == options.rank;
  const bool watches_holder = std::ranges::find(all.watched, rendezvous.holder) != all.watched.end();
  if (!holds_store_ && rendezvous.holder >= 0 && !watches_holder) all.watched.push_back(rendezvous.holder);
  shared_ = std::make_shared<Shared>(store, all, rendezvous.holder);
  if (options.neighbour >= 0) {
    shared_->neighbour = watch_over(processes.at(static_cast<std::size_t>(options.neighbour)));
  }
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
  const bool in_order = !shared_->failed && !shared_->silent;
  const bool gives_up = shared_->silent.has_value();
  lock.unlock();
  // The others hear the good-bye, or who was given up, before the store is gone.
  if (holds_store_ && in_order) std::this_thread::sleep_for(2 * shared_->pause);
  if (holds_store_ && gives_up) std::this_thread::sleep_for(shared_->pause + on_their_way);
}

std::optional<std::vector<int>> Pulse::silent() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->silent;
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

// nullopt where the group can do without the silent ones. Nobody can without the store.
std::optional<std::vector<int>> GroupPulse::members_of(const std::vector<int>& silent) const {
  auto members = members_among(silent);
  if (members.empty() && !silent.empty()) return std::nullopt;
  return members;
}

}  // namespace tutti::comm
