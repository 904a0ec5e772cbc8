#include "comm/meeting/pulse.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/meeting/crew.h"
#include "comm/meeting/doorbell.h"
#include "comm/meeting/news.h"
#include "comm/meeting/silence.h"
#include "comm/meeting/vital_signs.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

constexpr auto between_looks_in_a_hurry = std::chrono::milliseconds(15);
constexpr auto longest_hurry = std::chrono::seconds(1);
constexpr auto longest_good_bye = std::chrono::milliseconds(300);
constexpr auto on_their_way = std::chrono::milliseconds(50);

}  // namespace

// What the threads share. A request to a store that is cut off ends only with the connection, so nobody waits for the
// thread that asks.
struct Pulse::Shared {
  Shared(Crews crews_, VitalSigns signs_, Doorbell bell_, int holder_, const PulseOptions& options)
      : crews(std::move(crews_)),
        board(crews.board),
        signs(std::move(signs_)),
        bell(std::move(bell_)),
        rank(options.rank),
        holder(holder_),
        node_of_rank(options.node_of_rank),
        patience(options.patience),
        pause(between_beats(crews.count())),
        silence(signs.watched(), holder, patience + pause - between_beats(1), Clock::now()) {}

  const Crews crews;
  const std::shared_ptr<CrewBoard> board;
  VitalSigns signs;  // of the asking thread
  Doorbell bell;     // likewise
  const int rank;
  const int holder;
  const std::vector<int> node_of_rank;
  const std::chrono::milliseconds patience;
  const std::chrono::milliseconds pause;

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;    // the pulse is let go of
  bool failed = false;  // because of an exception
  int running = 2;      // threads
  bool asks = false;    // the thread is not ready for anything else
  std::optional<std::uint32_t> to_beat;
  News to_tell;  // found by this rank
  Silence silence;
  GivenUp given_up;
  std::list<Wake> wakes;

  // The next rank of the crew that lives.
  int next = -1;
  std::optional<ProcessWatch> next_process;
  StoppedProcess next_stopped{Clock::now()};

  bool holds_store() const { return holder == rank; }
  bool hurries() const { return Clock::now() < board->hurries_until(); }

  /// The thread that asks the store.
  void ask() {
    try {
      std::unique_lock lock(mutex);
      for (;;) {
        asks = false;
        changed.wait(lock, [&] { return over || to_beat || !to_tell.to_entries().empty(); });
        asks = true;
        if (over) break;
        if (const auto own_beats = std::exchange(to_beat, std::nullopt)) beat(*own_beats, lock);
        tell(lock);
      }
      // Nobody else may look at it, and those who wait for it must know. How the holder of the store leaves matters to
      // all.
      look_at_next();
      if (holds_store() && !failed) to_tell.left.push_back(holder);
      tell(lock);
      lock.unlock();
      if (!failed && is_last_of_crew()) signs.say_good_bye();
    } catch (const std::exception&) {
      // The store has ended with its process.
      const std::lock_guard lock(mutex);
      over = over || silence.lost();
      board->wake_all();
    }
  }

  void beat(std::uint32_t own_beats, std::unique_lock<std::mutex>& lock) {
    silence.asked(Clock::now());
    lock.unlock();
    bell.answer();
    const auto look = signs.beat(own_beats, hurries());
    lock.lock();
    silence.answered();
    board->hear(signs.watched(), look.beats, Clock::now());
    for (const int other : look.ended) tell_of_end(other);
    if (!look.news) return;
    board->mark(*look.news);
    board->wake_all();
  }

  void tell(std::unique_lock<std::mutex>& lock) {
    const auto news = std::exchange(to_tell, {});
    if (news.to_entries().empty()) return;
    silence.asked(Clock::now());
    lock.unlock();
    signs.tell(news);
    lock.lock();
    silence.answered();
  }

  /// Whether all others of the crew have gone. Those that were killed did not say so.
  bool is_last_of_crew() const {
    return std::ranges::all_of(crews.members(crews.first[static_cast<std::size_t>(rank)]), [&](int other) {
      return (board->marks(other) & (CrewBoard::away | CrewBoard::ended)) != 0 ||
             ProcessWatch(process_of(other)).state() == ProcessState::ended;
    });
  }

  pid_t process_of(int other) const {
    return crews.introductions[static_cast<std::size_t>(other)].board.process.number;
  }

  /// The thread that listens.
  void listen() {
    std::unique_lock lock(mutex);
    while (!over) {
      const auto wakes_so_far = board->wakes();
      hear();
      look_at_next();
      judge();
      take_turn();
      const auto until = next_look();
      silence.sleeps_until(until);
      lock.unlock();
      board->sleep(wakes_so_far, until);
      lock.lock();
    }
    changed.notify_all();
  }

  void hear() {
    std::vector<std::int64_t> beats;
    for (const int other : signs.watched()) beats.push_back(board->beats(other));
    if (const auto heard = board->heard(); heard != Deadline{}) silence.heard(beats, heard);
    const auto news = board->news();
    if (std::ranges::find(news.left, holder) != news.left.end()) silence.holder_says_good_bye();
    give_up(news.silent);
    if (board->store_is_silent()) give_up_store();
  }

  void look_at_next() {
    const auto lives = [&](int other) { return (board->marks(other) & (CrewBoard::ended | CrewBoard::left)) == 0; };
    const auto now = Clock::now();
    if (const int found = next_in_crew(rank, crews.first, lives); std::exchange(next, found) != found) {
      next_process.reset();
      next_stopped = StoppedProcess(now);
      if (next >= 0) next_process.emplace(process_of(next));
    }
    if (!next_process) return;
    const auto state = next_process->state();
    if (state == ProcessState::ended && lives(next)) tell_of_end(next);
    next_stopped.look(now, state == ProcessState::stopped);
    if (next_stopped.is_given_up(patience, hurries())) tell_of_silence({next});
  }

  /// Whether this rank has waited for any of the others for long enough.
  void judge() {
    const auto found = silence.look(Clock::now());
    if (found.store && !given_up.store) {
      give_up_store();
      board->note_silent_store();
      board->wake_all();
    }
    for (const int first : found.ranks) tell_of_silence(crews.members(first));
  }

  void tell_of_end(int other) {
    board->mark(other, CrewBoard::ended);
    to_tell.ended.push_back(other);
    board->wake_all();
    changed.notify_all();
  }

  void tell_of_silence(const std::vector<int>& ranks) {
    const auto more = give_up(ranks);
    if (more.empty()) return;
    for (const int other : more) {
      board->mark(other, CrewBoard::silent);
      to_tell.silent.push_back(other);
    }
    board->wake_all();
    changed.notify_all();
  }

  void take_turn() {
    if (asks || to_beat) return;
    to_beat = board->claim_beat(rank, between_turns(), Clock::now());
    if (to_beat) changed.notify_all();
  }

  std::chrono::milliseconds between_turns() const {
    if (hurries()) return between_looks_in_a_hurry;
    return silence.is_in_doubt(Clock::now()) ? StoppedProcess::between_close_looks : pause;
  }

  Deadline next_look() const {
    const auto now = Clock::now();
    if (hurries()) return now + between_looks_in_a_hurry;
    if (next_stopped.is_stopped() || silence.is_in_doubt(now)) return now + StoppedProcess::between_close_looks;
    const auto rarely = now + StoppedProcess::between_looks;
    if (!board->leads(rank)) return rarely;
    return std::clamp(next_beat(board->last_beat(), true, pause), now + between_looks_in_a_hurry, rarely);
  }

  void give_up_store() {
    if (std::exchange(given_up.store, true)) return;
    add_to_given_up(ranks_of_holders_machine());
    wake_all();
  }

  std::vector<int> ranks_of_holders_machine() const {
    std::vector<int> ranks;
    for (std::size_t other = 0; holder >= 0 && other < node_of_rank.size(); ++other) {
      const bool beside = node_of_rank[other] == node_of_rank[static_cast<std::size_t>(holder)];
      if (beside) ranks.push_back(static_cast<int>(other));
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
  }

  void end_thread() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }
};

Pulse::Pulse(const Rendezvous& rendezvous, const PulseOptions& options) : patience_(options.patience) {
  // Before the ranks meet: to connect may take a rank seconds, where a name service is slow, and none may be watched
  // yet.
  auto store = rendezvous.store->clone();
  Doorbell bell(options.host);
  auto crews = meet_crews(rendezvous, options.rank, options.node_of_rank, bell.address(), options.connect_timeout);
  if (!crews.is_alone(options.rank)) bell = Doorbell();
  VitalSigns signs(std::move(store), options.rank, options.node_of_rank, crews);
  shared_ = std::make_shared<Shared>(std::move(crews), std::move(signs), std::move(bell), rendezvous.holder, options);
  for (const auto run : {&Shared::ask, &Shared::listen}) {
    std::thread([shared = shared_, run] {
      name_this_thread(run == &Shared::ask ? "tutti-pulse" : "tutti-silence");
      ((*shared).*run)();
      shared->end_thread();
    }).detach();
  }
}

Pulse::~Pulse() {
  const bool failed = std::uncaught_exceptions() > 0;
  CrewBoard& board = *shared_->board;
  board.mark(shared_->rank, failed ? CrewBoard::away : CrewBoard::away | CrewBoard::left);
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->failed = failed;
  shared_->changed.notify_all();
  board.wake_all();
  shared_->changed.wait_for(lock, longest_good_bye, [&] { return shared_->running == 0; });
  const bool tells_others = shared_->holds_store() && (!failed || !shared_->given_up.ranks.empty());
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
  return shared_->board->news().ended;
}

void Pulse::hurry() {
  CrewBoard& board = *shared_->board;
  const auto now = Clock::now();
  if (board.hurries_until() > now + longest_hurry / 2) return;
  board.hurry_until(now + longest_hurry);
  board.wake_all();
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

// Who asks for that has lost a connection.
std::vector<int> GroupPulse::ended() const {
  hurry();
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
