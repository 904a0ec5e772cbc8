// Ranks that share a store inside one process. Rank 0 has a pulse; the others are played by hand, at the store.
#include "comm/meeting/pulse.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "comm/engine/process.h"
#include "comm/meeting/given_up.h"

namespace tutti::comm::pulse_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr std::chrono::seconds connect_timeout{60};

Rendezvous one_store(int holder) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return {.store = store, .bulletin_store = store, .holder = holder};
}

void beat(const Rendezvous& rendezvous, int rank, const std::string& number) {
  rendezvous.store->set("beat/" + std::to_string(rank), number);
}

/// Rank 0's pulse among three ranks; the others come, and are played from then on. `process` is what rank 1 says of its
/// process, and `first_beat` what stands at the store for it then.
std::unique_ptr<Pulse> pulse_of_three(const Rendezvous& rendezvous, milliseconds patience,
                                      const std::string& process = "", const std::string& first_beat = "0") {
  std::vector<std::thread> others;
  for (const int rank : {1, 2}) {
    others.emplace_back([&, rank] {
      beat(rendezvous, rank, rank == 1 ? first_beat : "0");
      (void)exchange(rendezvous, "pulse", rank, 3, rank == 1 ? process : "", connect_timeout);
    });
  }
  const PulseOptions options{.rank = 0,
                             .size = 3,
                             .watched = {1, 2},
                             .neighbour = 1,
                             .patience = patience,
                             .connect_timeout = connect_timeout};
  auto pulse = std::make_unique<Pulse>(rendezvous, options);
  for (auto& other : others) other.join();
  return pulse;
}

TEST(Pulse, TellsWhoIsSilentAndNotWhoHasLeft) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, milliseconds(300));
  EXPECT_EQ(pulse->silent(), std::nullopt);
  beat(rendezvous, 2, "-1");
  std::promise<Ranks> woken;
  const auto alarm = pulse->when_silent([&](const Ranks& ranks) { woken.set_value(ranks); });
  EXPECT_EQ(woken.get_future().get(), Ranks{1});
  EXPECT_EQ(pulse->silent(), Ranks{1});
  // Later comers are told at once.
  Ranks told;
  EXPECT_EQ(pulse->when_silent([&](const Ranks& ranks) { told = ranks; }), nullptr);
  EXPECT_EQ(told, Ranks{1});
}

std::string word_at(const Rendezvous& rendezvous, const std::string& key) {
  const auto bytes = rendezvous.store->get(key);
  return {bytes.begin(), bytes.end()};
}

void wait_for_beats(const Rendezvous& rendezvous, int count) {
  for (; count > 0; --count) {
    const std::string before = word_at(rendezvous, "beat/0");
    while (word_at(rendezvous, "beat/0") == before) std::this_thread::yield();
  }
}

TEST(Pulse, BeatsAndSaysGoodBye) {
  const auto rendezvous = one_store(-1);
  auto pulse = pulse_of_three(rendezvous, std::chrono::hours(1));
  wait_for_beats(rendezvous, 1);
  pulse.reset();
  EXPECT_EQ(word_at(rendezvous, "beat/0"), "-1");
}

TEST(Pulse, TellsAllWhomItHasGivenUp) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, milliseconds(300));
  beat(rendezvous, 1, "-1");
  while (word_at(rendezvous, "given-up").empty()) std::this_thread::yield();
  EXPECT_EQ(word_at(rendezvous, "given-up"), "s2\n");
}

TEST(Pulse, HearsWhomOthersHaveGivenUp) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, std::chrono::hours(1));
  std::promise<Ranks> woken;
  const auto alarm = pulse->when_silent([&](const Ranks& ranks) { woken.set_value(ranks); });
  rendezvous.store->set("given-up", std::string("s2\n"));
  EXPECT_EQ(woken.get_future().get(), Ranks{2});
}

/// A process that has ended and that nobody has waited for; gone with this.
class EndedProcess {
 public:
  EndedProcess() {
    std::string program = "/bin/true";
    std::array<char*, 2> words{program.data(), nullptr};
    if (::posix_spawn(&number_, words[0], nullptr, nullptr, words.data(), environ) != 0) number_ = -1;
    siginfo_t ended{};
    ::waitid(P_PID, static_cast<id_t>(number_), &ended, WEXITED | WNOWAIT);
  }
  ~EndedProcess() { ::waitpid(number_, nullptr, 0); }
  EndedProcess(const EndedProcess&) = delete;
  EndedProcess& operator=(const EndedProcess&) = delete;

  std::string identity() const {
    return std::to_string(number_) + " " + std::to_string(this_process().namespace_device) + " " +
           std::to_string(this_process().namespace_inode);
  }

 private:
  pid_t number_ = -1;
};

TEST(Pulse, TellsAllWhenTheNextProcessOnTheNodeHasEnded) {
  const EndedProcess process;
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, std::chrono::hours(1), process.identity());
  const GroupPulse group(std::shared_ptr<Pulse>(std::shared_ptr<Pulse>(), pulse.get()), {0, 1});
  EXPECT_EQ(group.of({1}).ended().size(), pulse->ended().size());
  group.hurry();
  while (pulse->ended().empty()) std::this_thread::yield();
  EXPECT_EQ(pulse->ended(), Ranks{1});
  EXPECT_EQ(group.of({1}).ended(), Ranks{0});
  EXPECT_EQ(word_at(rendezvous, "given-up"), "e1\n");
  EXPECT_EQ(pulse->silent(), std::nullopt) << "what it has sent may still be read";
}

TEST(Pulse, AProcessThatHasSaidGoodByeMayEnd) {
  const EndedProcess process;
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, std::chrono::hours(1), process.identity(), "-1");
  wait_for_beats(rendezvous, 5);
  EXPECT_EQ(pulse->ended(), Ranks{});
}

TEST(GivenUp, SurvivesTheStore) {
  const auto told =
      GivenUp::from_entries(GivenUp{.silent = {3, 1}, .ended = {2}}.to_entries() + "s1\ns-1\ne4\nx0\n", 4);
  EXPECT_EQ(told.silent, (Ranks{1, 3}));
  EXPECT_EQ(told.ended, Ranks{2});
  EXPECT_EQ(GivenUp::from_entries("", 4).silent, Ranks{});
  EXPECT_EQ(GivenUp::from_entries("s", 4).silent, Ranks{});
}

TEST(Pulse, AnAlarmThatIsLetGoOfIsNotRung) {
  const auto rendezvous = one_store(0);
  const auto pulse = pulse_of_three(rendezvous, milliseconds(1000));
  auto unwanted = pulse->when_silent([](const Ranks&) { ADD_FAILURE() << "it rang"; });
  std::promise<void> rung;
  const auto wanted = pulse->when_silent([&](const Ranks&) { rung.set_value(); });
  unwanted.reset();
  rung.get_future().wait();
}

}  // namespace
}  // namespace tutti::comm::pulse_test
