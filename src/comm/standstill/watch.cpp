#include "comm/standstill/watch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/meeting/store_bytes.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

// A look costs as much as it costs to wake a thread: those that find a rank going on are rare. A rank that calls last
// is seen to stand still a second after its call, at most, its node a tenth later, and all are told within 0.9 s more.
constexpr auto between_looks_at_calls = std::chrono::milliseconds(400);
constexpr auto until_second_look = std::chrono::milliseconds(200);
constexpr auto between_looks_at_node = std::chrono::milliseconds(100);
// Ranks that stand still for ever mostly came to it together: those that have long asked in vain ask less often.
constexpr auto between_first_requests = std::chrono::milliseconds(300);
constexpr auto between_later_requests = std::chrono::milliseconds(600);
constexpr int first_requests = 10;
constexpr auto between_last_looks = std::chrono::milliseconds(50);
constexpr auto until_all_have_heard = std::chrono::milliseconds(200);
constexpr auto longest_end = std::chrono::milliseconds(300);
constexpr int looks_before_word = 2;  // that saw the same

std::string word_key(int rank) {
  return "standstill/" + std::to_string(rank);
}

// The word of this rank, and what came of it.
class Word {
 public:
  Word(c10::intrusive_ptr<c10d::Store> store, int rank, int size) : store_(std::move(store)), rank_(rank), size_(size) {
    for (int other = 0; other < size; ++other) keys_.push_back(word_key(other));
  }

  bool given() const { return given_; }
  std::chrono::milliseconds until_next_request() const {
    if (verdict_) return between_last_looks;
    return requests_ < first_requests ? between_first_requests : between_later_requests;
  }

  void give(const std::string& text) {
    store_->set(word_key(rank_), as_bytes(text));
    store_->add(count_key, 1);
    given_ = true;
  }

  void take_back() {
    given_ = false;
    verdict_.reset();
    store_->add(count_key, -1);
  }

  /// Call it again and again while this rank stands still. What to tell, when all agree.
  std::optional<std::string> verdict() {
    ++requests_;
    if (!verdict_) {
      if (store_->add(count_key, 0) < size_) return std::nullopt;
      judge();
      if (verdict_) store_->add(agreement_key_, 1);
    }
    if (!verdict_ || store_->add(agreement_key_, 0) < size_) return std::nullopt;
    return verdict_;
  }

 private:
  static constexpr const char* count_key = "standstill/count";

  void judge() {
    std::vector<Stand> stands;
    std::string all;
    for (const auto& bytes : store_->multiGet(keys_)) {
      const std::string text = as_text(bytes);
      auto stand = Stand::from_text(text);
      if (!stand) return;
      stands.push_back(*std::move(stand));
      all += text;
    }
    verdict_ = standstill_of(stands);
    agreement_key_ = "standstill/agreed/" + std::to_string(std::hash<std::string>{}(all));
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::vector<std::string> keys_;
  bool given_ = false;
  int requests_ = 0;
  std::optional<std::string> verdict_;  // of this rank; set where all have left word
  std::string agreement_key_;
};

}  // namespace

// What the thread shares with the watch. A request to a store that is cut off ends only with the connection, so nobody
// waits for the thread.
struct StandstillWatch::Shared {
  Shared(Rendezvous rendezvous_, int rank_, int size_, bool store_may_rest_)
      : rendezvous(std::move(rendezvous_)), rank(rank_), size(size_), store_may_rest(store_may_rest_) {}

  const Rendezvous rendezvous;
  const int rank;
  const int size;
  const bool store_may_rest;
  const std::shared_ptr<CallingThreads> callers = std::make_shared<CallingThreads>();

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  bool running = true;
  std::vector<std::weak_ptr<WatchedCalls>> channels;
  std::weak_ptr<WatchedCalls> everyone;  // the job's channel

  std::vector<std::shared_ptr<WatchedCalls>> channels_alive() {
    std::vector<std::shared_ptr<WatchedCalls>> alive;
    const std::lock_guard lock(mutex);
    for (const auto& channel : channels) {
      if (auto still = channel.lock()) alive.push_back(std::move(still));
    }
    return alive;
  }

  struct Halt {
    Stand stand;
    std::vector<std::shared_ptr<WatchedCalls>> channels;  // that threads wait in
  };
  /// Where this rank stands, if all threads that call anything wait.
  std::optional<Halt> look() {
    const auto alive = channels_alive();
    const auto threads = callers->alive();
    if (threads.empty()) return std::nullopt;
    Stand stand;
    stand.changes = callers->changes();
    std::vector<WatchedCalls::Seen> seen;
    for (const auto& channel : alive) {
      seen.push_back(channel->look());
      stand.channels[channel->channel()] = seen.back().channel;
    }
    Halt halt;
    for (const auto thread : threads) {
      const Stand::Wait* wait = nullptr;
      for (std::size_t index = 0; index < alive.size() && wait == nullptr; ++index) {
        wait = seen[index].wait_of(thread);
        if (wait != nullptr) halt.channels.push_back(alive[index]);
      }
      if (wait == nullptr) return std::nullopt;
      stand.waits.push_back(*wait);
    }
    halt.stand = std::move(stand);
    return halt;
  }

  /// Tells all ranks whether this one stands still. Returns false where some rank is known not to: nothing has to be
  /// asked at the store then.
  bool tell_all(bool still) {
    std::unique_lock lock(mutex);
    const auto all_ranks = everyone.lock();
    lock.unlock();
    return !all_ranks || all_ranks->stands_still(still);
  }

  /// Returns whether the watch goes on.
  bool pause(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, time, [&] { return over; });
  }

  void run() {
    try {
      std::optional<Word> word;  // its connection is made when it is needed
      std::optional<Halt> halt;
      std::uint64_t last_changes = 0;
      int same = 0;
      auto until_next_look = between_looks_at_calls;
      while (pause(until_next_look)) {
        until_next_look = between_looks_at_calls;
        if (store_may_rest) rest(rendezvous);
        // A rank that goes on is not looked at any closer. What was seen of one that stands still holds until it goes
        // on.
        const auto changes = callers->changes();
        if (std::exchange(last_changes, changes) != changes) {
          halt.reset();
        } else if (!halt) {
          halt = look();
        }
        if (!halt) {
          if (word && word->given()) word->take_back();
          word.reset();  // and its connection
          if (same >= looks_before_word) tell_all(false);
          same = 0;
          continue;
        }
        if (++same < looks_before_word) {
          until_next_look = until_second_look;
          continue;
        }
        if (!tell_all(true)) {
          until_next_look = between_looks_at_node;
          continue;
        }
        if (!word) word.emplace(rendezvous.store->clone(), rank, size);
        if (!word->given()) word->give(halt->stand.to_text());
        const auto verdict = word->verdict();
        // Where all stand still, for all that is known on one machine, the end is near.
        until_next_look = store_may_rest ? between_last_looks : word->until_next_request();
        if (!verdict) continue;
        // What a rank that has heard earlier ends here is then told by the same words.
        for (const auto& channel : halt->channels) channel->foretell(*verdict);
        if (!pause(until_all_have_heard)) return;
        for (const auto& channel : halt->channels) channel->end();
        return;
      }
      if (word && word->given()) word->take_back();
    } catch (const std::exception&) {
      // The store has ended with its process.
    }
  }
};

StandstillWatch::StandstillWatch(const Rendezvous& rendezvous, int rank, int size, bool store_may_rest)
    : shared_(std::make_shared<Shared>(rendezvous, rank, size, store_may_rest)) {
  std::thread([shared = shared_] {
    name_this_thread("tutti-still");
    shared->run();
    const std::lock_guard lock(shared->mutex);
    shared->running = false;
    shared->changed.notify_all();
  }).detach();
}

StandstillWatch::~StandstillWatch() {
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, longest_end, [&] { return !shared_->running; });
}

std::shared_ptr<WatchedCalls> StandstillWatch::watch(const std::string& channel, std::vector<int> job_ranks) {
  auto calls = std::make_shared<WatchedCalls>(channel, std::move(job_ranks), shared_->callers);
  const std::lock_guard lock(shared_->mutex);
  if (shared_->channels.empty()) shared_->everyone = calls;
  std::erase_if(shared_->channels, [](const auto& other) { return other.expired(); });
  shared_->channels.push_back(calls);
  return calls;
}

}  // namespace tutti::comm
