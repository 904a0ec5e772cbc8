// Ranks that share a store inside one process. Rank 0 has a pulse; the others are played by hand, at the store.
#include "comm/meeting/pulse.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <future>
#include <string>
#include <thread>

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

/// Rank 0's pulse among three ranks; the others come, and are played from then on.
std::unique_ptr<Pulse> pulse_of_three(const Rendezvous& rendezvous, milliseconds patience) {
  std::vector<std::thread> others;
  for (const int rank : {1, 2}) {
    others.emplace_back([&rendezvous, rank] {
      beat(rendezvous, rank, "0");
      (void)exchange(rendezvous, "pulse", rank, 3, "", connect_timeout);
    });
  }
  auto pulse = std::make_unique<Pulse>(rendezvous, 0, 3, Ranks{1, 2}, patience, connect_timeout);
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

TEST(Pulse, BeatsAndSaysGoodBye) {
  const auto rendezvous = one_store(-1);
  auto pulse = pulse_of_three(rendezvous, std::chrono::hours(1));
  const auto own_beat = [&] {
    const auto bytes = rendezvous.store->get("beat/0");
    return std::string(bytes.begin(), bytes.end());
  };
  const std::string before = own_beat();
  while (own_beat() == before) std::this_thread::yield();
  pulse.reset();
  EXPECT_EQ(own_beat(), "-1");
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
