// Ranks that share a store inside one process. Rank 0 has a pulse; the others are played by hand, at the store.
#include "comm/meeting/pulse.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/engine/process.h"
#include "comm/meeting/crew.h"
#include "comm/meeting/doorbell.h"
#include "comm/meeting/news.h"
#include "comm/meeting/pairs.h"

namespace tutti::comm::pulse_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr std::chrono::seconds connect_timeout{60};

Rendezvous one_store(int holder) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return {.store = store, .bulletin_store = store, .holder = holder};
}

using Nodes = std::vector<int>;
const Nodes alone{0, 1, 1};           // three crews
const Nodes with_neighbour{0, 0, 1};  // rank 1 is of the same crew, rank 2 is another one

std::int64_t number_of_pair_with(const Rendezvous& rendezvous, int rank, std::int64_t added = 0) {
  return rendezvous.store->add("pair/0-" + std::to_string(rank), added);
}

/// What the others of three ranks say of themselves. Rank 1 is of rank 0's crew where it has a process here.
struct Others {
  ProcessIdentity process_of_1{};
  std::optional<SocketAddress> bell_of_2{};
};

/// Rank 0's pulse among three ranks; the others come, and are played from then on.
std::unique_ptr<Pulse> pulse_of_three(const Rendezvous& rendezvous, const Nodes& nodes, milliseconds patience,
                                      const Others& played = {}, std::shared_ptr<CrewBoard>* board = nullptr) {
  const auto play = [&](int rank) {
    CrewIntroduction own;
    if (rank == 1) own.board.process = played.process_of_1;
    if (rank == 2) own.bell = played.bell_of_2;
    const auto said = exchange(rendezvous, "pulse", rank, 3, own.to_text(), connect_timeout);
    const auto first = CrewIntroduction::from_text(said[0]);
    if (rank == 1 && board != nullptr) {
      const auto memory = SharedSegment::open(first.board);
      *board = std::make_shared<CrewBoard>(std::shared_ptr<void>(memory, memory->data()), 3);
    }
    const bool of_crew = own.board.process.sees(first.board.process) && nodes[0] == nodes[1];
    (void)exchange(rendezvous, "pulse/crews", rank, 3, std::to_string(of_crew ? 0 : rank), connect_timeout);
  };
  std::thread rank_1(play, 1);
  std::thread rank_2(play, 2);
  const PulseOptions options{
      .rank = 0, .node_of_rank = nodes, .patience = patience, .connect_timeout = connect_timeout};
  auto pulse = std::make_unique<Pulse>(rendezvous, options);
  rank_1.join();
  rank_2.join();
  return pulse;
}

/// Whom the first alarm is about.
class Alarm {
 public:
  Pulse::Wake wake() {
    return [this](const GivenUp& given_up) {
      if (!rung_.exchange(true)) ranks_.set_value(given_up.ranks);
    };
  }
  Ranks wait() { return ranks_.get_future().get(); }

 private:
  std::atomic<bool> rung_ = false;
  std::promise<Ranks> ranks_;
};

TEST(Pulse, TellsWhoIsSilentAndNotWhoHasLeft) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, alone, milliseconds(300));
  EXPECT_EQ(pulse->given_up().ranks, Ranks{});
  number_of_pair_with(rendezvous, 2, PairNumber::good_bye);
  Alarm alarm;
  const auto on_alarm = pulse->when_given_up(alarm.wake());
  EXPECT_EQ(alarm.wait(), Ranks{1});
  EXPECT_EQ(pulse->given_up().ranks, Ranks{1});
  // Later comers are told at once.
  Ranks told;
  const auto late = pulse->when_given_up([&](const GivenUp& given_up) { told = given_up.ranks; });
  EXPECT_EQ(told, Ranks{1});
}

TEST(Pulse, OfARankThatGivesSignsOfLifeNothingIsSaid) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, alone, milliseconds(400));
  number_of_pair_with(rendezvous, 1, PairNumber::good_bye);
  for (int beats = 0; beats < 12; ++beats) {
    const auto before = number_of_pair_with(rendezvous, 2, PairNumber::beat);
    while (number_of_pair_with(rendezvous, 2) == before) std::this_thread::yield();
  }
  EXPECT_EQ(pulse->given_up().ranks, Ranks{});
}

void wait_for_beats(const Rendezvous& rendezvous, int count) {
  for (; count > 0; --count) {
    const auto before = number_of_pair_with(rendezvous, 2);
    while (number_of_pair_with(rendezvous, 2) == before) std::this_thread::yield();
  }
}

std::string told_to_all(const Rendezvous& rendezvous) {
  const auto bytes = rendezvous.store->get("news");
  return {bytes.begin(), bytes.end()};
}

TEST(Pulse, BeatsAndSaysGoodBye) {
  for (const int holder : {-1, 0}) {
    const auto rendezvous = one_store(holder);
    auto pulse = pulse_of_three(rendezvous, alone, std::chrono::hours(1));
    wait_for_beats(rendezvous, 1);
    pulse.reset();
    for (const int rank : {1, 2}) {
      EXPECT_TRUE(PairNumber(number_of_pair_with(rendezvous, rank)).has_good_bye()) << rank;
    }
    if (holder == 0) {
      EXPECT_EQ(told_to_all(rendezvous), "l0\n");
    }
  }
}

TEST(Pulse, TellsAllWhomItHasGivenUp) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, alone, milliseconds(300));
  number_of_pair_with(rendezvous, 1, PairNumber::good_bye);
  while (PairNumber(number_of_pair_with(rendezvous, 2)).news_so_far() == 0) std::this_thread::yield();
  EXPECT_EQ(told_to_all(rendezvous), "s2\n");
  // Those who are no partners hear it too.
  while (PairNumber(rendezvous.store->add("pair/1-2", 0)).news_so_far() == 0) std::this_thread::yield();
}

TEST(Pulse, HearsWhomOthersHaveGivenUp) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, alone, std::chrono::hours(1));
  Alarm alarm;
  const auto on_alarm = pulse->when_given_up(alarm.wake());
  rendezvous.store->set("news", std::string("s2\n"));
  number_of_pair_with(rendezvous, 1, PairNumber::news);
  EXPECT_EQ(alarm.wait(), Ranks{2});
}

/// Of another process than this one.
ProcessIdentity identity_of(pid_t process) {
  ProcessIdentity identity = this_process();
  identity.number = process;
  identity.nonce = random_nonce();
  return identity;
}

/// Runs until it is gone with this.
class RunningProcess {
 public:
  explicit RunningProcess(std::vector<std::string> words = {"/bin/sleep", "1000"}) {
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::posix_spawn(&number_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) number_ = -1;
  }
  ~RunningProcess() {
    ::kill(number_, SIGKILL);
    ::waitpid(number_, nullptr, 0);
  }
  RunningProcess(const RunningProcess&) = delete;
  RunningProcess& operator=(const RunningProcess&) = delete;

  void stop() const { ::kill(number_, SIGSTOP); }
  /// Nobody waits for it yet.
  void end() const {
    ::kill(number_, SIGKILL);
    siginfo_t ended{};
    ::waitid(P_PID, static_cast<id_t>(number_), &ended, WEXITED | WNOWAIT);
  }
  ProcessIdentity identity() const { return identity_of(number_); }

 private:
  pid_t number_ = -1;
};

/// One that has ended, and that nobody has waited for.
class EndedProcess {
 public:
  EndedProcess() { process_.end(); }
  ProcessIdentity identity() const { return process_.identity(); }

 private:
  RunningProcess process_;
};

TEST(Pulse, TellsAllWhenTheNextProcessOnTheNodeHasEnded) {
  const EndedProcess process;
  const auto rendezvous = one_store(0);
  const auto pulse =
      pulse_of_three(rendezvous, with_neighbour, std::chrono::hours(1), {.process_of_1 = process.identity()});
  const GroupPulse group(std::shared_ptr<Pulse>(std::shared_ptr<Pulse>(), pulse.get()), {0, 1});
  group.hurry();
  while (pulse->ended().empty()) std::this_thread::yield();
  EXPECT_EQ(pulse->ended(), Ranks{1});
  EXPECT_EQ(group.of({1}).ended(), Ranks{0});
  EXPECT_EQ(told_to_all(rendezvous), "e1\n");
  EXPECT_EQ(pulse->given_up().ranks, Ranks{}) << "what it has sent may still be read";
}

TEST(GroupPulse, NamesMembersByTheirRanksInTheGroup) {
  EXPECT_EQ(GroupPulse(nullptr, {1, 4, 6}).members_among({6, 2, 1}), (Ranks{0, 2}));
}

TEST(Pulse, AProcessThatHasSaidGoodByeMayEnd) {
  RunningProcess process;
  const auto rendezvous = one_store(0);
  std::shared_ptr<CrewBoard> board;
  const auto pulse =
      pulse_of_three(rendezvous, with_neighbour, std::chrono::hours(1), {.process_of_1 = process.identity()}, &board);
  board->mark(1, CrewBoard::left | CrewBoard::away);
  process.end();
  pulse->hurry();
  wait_for_beats(rendezvous, 5);
  EXPECT_EQ(pulse->ended(), Ranks{});
}

TEST(Pulse, TheLastOfACrewSaysGoodByeForAll) {
  for (const bool is_last : {true, false}) {
    const RunningProcess process;
    const auto rendezvous = one_store(-1);
    std::shared_ptr<CrewBoard> board;
    auto pulse =
        pulse_of_three(rendezvous, with_neighbour, std::chrono::hours(1), {.process_of_1 = process.identity()}, &board);
    if (is_last) board->mark(1, CrewBoard::away);
    pulse.reset();
    EXPECT_EQ(PairNumber(number_of_pair_with(rendezvous, 2)).has_good_bye(), is_last);
    EXPECT_EQ(board->marks(0), CrewBoard::left | CrewBoard::away);
  }
}

TEST(Pulse, WhoLeavesTellsThatTheNextProcessHasEnded) {
  const RunningProcess process;
  const auto rendezvous = one_store(-1);
  auto pulse = pulse_of_three(rendezvous, with_neighbour, std::chrono::hours(1), {.process_of_1 = process.identity()});
  wait_for_beats(rendezvous, 1);
  process.end();
  pulse.reset();
  EXPECT_EQ(told_to_all(rendezvous), "e1\n");
}

TEST(Pulse, WhoeverIsLeftGivesTheCrewsSignsOfLife) {
  const RunningProcess process;
  const auto rendezvous = one_store(0);
  std::shared_ptr<CrewBoard> board;
  const auto pulse =
      pulse_of_three(rendezvous, with_neighbour, std::chrono::hours(1), {.process_of_1 = process.identity()}, &board);
  // Rank 1 gives one, and no other.
  while (!board->claim_beat(1, milliseconds(0), Clock::now())) std::this_thread::yield();
  wait_for_beats(rendezvous, 2);
  EXPECT_EQ(board->last_beat().rank, 0);
}

TEST(Pulse, WhatOneOfTheCrewHearsAllHear) {
  const RunningProcess process;
  const auto rendezvous = one_store(0);
  std::shared_ptr<CrewBoard> board;
  const auto pulse =
      pulse_of_three(rendezvous, with_neighbour, std::chrono::hours(1), {.process_of_1 = process.identity()}, &board);
  Alarm alarm;
  const auto on_alarm = pulse->when_given_up(alarm.wake());
  board->mark(2, CrewBoard::silent);
  board->wake_all();
  EXPECT_EQ(alarm.wait(), Ranks{2});
  board->note_silent_store();
  board->wake_all();
  while (!pulse->given_up().store) std::this_thread::yield();
  EXPECT_EQ(pulse->given_up().ranks, (Ranks{0, 1, 2})) << "rank 0 serves it";
}

TEST(Pulse, ARankThatIsAloneHasEndedWhereItsPortRefuses) {
  for (const bool said_good_bye : {false, true}) {
    const auto rendezvous = one_store(0);
    auto bell = std::make_unique<Doorbell>("127.0.0.1");
    ASSERT_TRUE(bell->address());
    const auto pulse = pulse_of_three(rendezvous, alone, std::chrono::hours(1), {.bell_of_2 = bell->address()});
    pulse->hurry();
    wait_for_beats(rendezvous, 5);
    EXPECT_EQ(pulse->ended(), Ranks{}) << "it is there";
    if (said_good_bye) number_of_pair_with(rendezvous, 2, PairNumber::good_bye);
    bell.reset();
    pulse->hurry();
    if (said_good_bye) {
      wait_for_beats(rendezvous, 5);
      EXPECT_EQ(pulse->ended(), Ranks{});
    } else {
      while (pulse->ended().empty()) std::this_thread::yield();
      EXPECT_EQ(pulse->ended(), Ranks{2});
    }
  }
}

TEST(Pulse, APortThatRefusedFromTheBeginningSaysNothing) {
  const auto rendezvous = one_store(0);
  const auto nobody = Doorbell("127.0.0.1").address();
  const auto pulse = pulse_of_three(rendezvous, alone, std::chrono::hours(1), {.bell_of_2 = nobody});
  pulse->hurry();
  wait_for_beats(rendezvous, 5);
  EXPECT_EQ(pulse->ended(), Ranks{}) << "a firewall may refuse too";
}

TEST(Pulse, AProcessOnTheNodeThatIsStoppedIsSilent) {
  const auto rendezvous = one_store(0);
  RunningProcess process;
  const auto pulse =
      pulse_of_three(rendezvous, with_neighbour, milliseconds(300), {.process_of_1 = process.identity()});
  number_of_pair_with(rendezvous, 2, PairNumber::good_bye);
  wait_for_beats(rendezvous, 5);
  EXPECT_EQ(pulse->given_up().ranks, Ranks{}) << "it runs";
  process.stop();
  while (pulse->given_up().ranks.empty()) std::this_thread::yield();
  EXPECT_EQ(pulse->given_up().ranks, Ranks{1});
}

TEST(News, SurviveTheStore) {
  const News news{.silent = {3, 1}, .ended = {2}, .left = {0}};
  const auto told = News::from_entries(news.to_entries() + "s1\ns-1\ne4\nx0\n", 4);
  EXPECT_EQ(told.silent, (Ranks{1, 3}));
  EXPECT_EQ(told.ended, Ranks{2});
  EXPECT_EQ(told.left, Ranks{0});
  EXPECT_EQ(News::from_entries("", 4).silent, Ranks{});
  EXPECT_EQ(News::from_entries("s", 4).silent, Ranks{});
}

/// Knows whether the thread that made it had said anything when it connected anew.
class OneThatIsCloned final : public c10d::HashStore {
 public:
  std::int64_t add(const std::string& key, std::int64_t value) override {
    note();
    return HashStore::add(key, value);
  }
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override {
    note();
    HashStore::append(key, value);
  }
  c10::intrusive_ptr<Store> clone() override {
    had_said_something = said_something_.load();
    return HashStore::clone();
  }

  std::optional<bool> had_said_something;

 private:
  void note() {
    if (std::this_thread::get_id() == thread_) said_something_ = true;
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> said_something_ = false;
};

// To connect may take seconds where a name service is slow: whoever has met the others would be missed by then.
TEST(Pulse, ConnectsBeforeTheRanksMeet) {
  const auto store = c10::make_intrusive<OneThatIsCloned>();
  const auto pulse =
      pulse_of_three({.store = store, .bulletin_store = store, .holder = 0}, alone, milliseconds(60'000));
  EXPECT_EQ(store->had_said_something, false);
}

TEST(Pulse, AnAlarmThatIsLetGoOfIsNotRung) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, alone, milliseconds(1000));
  auto unwanted = pulse->when_given_up([](const GivenUp&) { ADD_FAILURE() << "it rang"; });
  Alarm alarm;
  const auto wanted = pulse->when_given_up(alarm.wake());
  unwanted.reset();
  (void)alarm.wait();
}

}  // namespace
}  // namespace tutti::comm::pulse_test
