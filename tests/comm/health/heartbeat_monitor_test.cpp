// Ranks that share a store inside one process. Rank 0 has a heartbeat monitor. The test writes the values of ranks 1
// and 2 to the store.
#include "comm/health/heartbeat_monitor.h"

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

#include "comm/health/heartbeat_pairs.h"
#include "comm/health/liveness_port.h"
#include "comm/health/local_peers.h"
#include "comm/health/peer_status.h"
#include "comm/os/process.h"

namespace tutti::comm::heartbeat_monitor_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;

constexpr std::chrono::seconds connect_timeout{60};

Rendezvous one_store(int store_owner) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return {.store = store, .failure_store = store, .store_owner = store_owner};
}

using Nodes = std::vector<int>;
const Nodes alone{0, 1, 1};            // no rank has a local peer
const Nodes with_local_peer{0, 0, 1};  // rank 1 is a local peer of rank 0, rank 2 has none

std::int64_t counter_of_pair_with(const Rendezvous& rendezvous, int rank, std::int64_t added = 0) {
  return rendezvous.store->add("heartbeat_pair/0-" + std::to_string(rank), added);
}

/// The values that ranks 1 and 2 publish. Rank 1 is a local peer of rank 0 if it has a process here.
struct PlayedRanks {
  ProcessIdentity process_of_1{};
  std::optional<SocketAddress> liveness_address_of_2{};
};

/// Rank 0's monitor among three ranks. Two threads join the rendezvous as ranks 1 and 2.
std::unique_ptr<HeartbeatMonitor> monitor_of_three(const Rendezvous& rendezvous, const Nodes& nodes,
                                                   milliseconds heartbeat_timeout, const PlayedRanks& played = {},
                                                   std::shared_ptr<LivenessTable>* table = nullptr) {
  const auto play = [&](int rank) {
    LocalPeerInfo info;
    if (rank == 1) info.table.process = played.process_of_1;
    if (rank == 2) info.liveness_address = played.liveness_address_of_2;
    const auto infos = store_all_gather(rendezvous, "heartbeat", rank, 3, info.to_text(), connect_timeout);
    const auto leader = LocalPeerInfo::from_text(infos[0]);
    if (rank == 1 && table != nullptr) {
      const auto memory = SharedSegment::open(leader.table, LivenessTable::bytes(3));
      *table = std::make_shared<LivenessTable>(std::shared_ptr<void>(memory, memory->data()), 3);
    }
    const bool is_local_peer =
        info.table.process.shares_pid_namespace_with(leader.table.process) && nodes[0] == nodes[1];
    (void)store_all_gather(rendezvous, "heartbeat/leaders", rank, 3, std::to_string(is_local_peer ? 0 : rank),
                           connect_timeout);
  };
  std::thread rank_1(play, 1);
  std::thread rank_2(play, 2);
  const HeartbeatMonitorOptions options{
      .rank = 0, .node_of_rank = nodes, .heartbeat_timeout = heartbeat_timeout, .connect_timeout = connect_timeout};
  auto monitor = std::make_unique<HeartbeatMonitor>(rendezvous, options);
  rank_1.join();
  rank_2.join();
  return monitor;
}

/// The ranks of the first failure that the monitor reports.
class Alarm {
 public:
  HeartbeatMonitor::Callback callback() {
    return [this](const FailedPeers& failed_peers) {
      if (!called_.exchange(true)) ranks_.set_value(failed_peers.ranks);
    };
  }
  Ranks wait() { return ranks_.get_future().get(); }

 private:
  std::atomic<bool> called_ = false;
  std::promise<Ranks> ranks_;
};

TEST(HeartbeatMonitor, ReportsMissedHeartbeatsButNotExitedRanks) {
  const auto rendezvous = one_store(0);
  const auto monitor = monitor_of_three(rendezvous, alone, milliseconds(300));
  EXPECT_EQ(monitor->failed_peers().ranks, Ranks{});
  counter_of_pair_with(rendezvous, 2, PackedCounter::exited);
  Alarm alarm;
  const auto on_alarm = monitor->on_failure(alarm.callback());
  EXPECT_EQ(alarm.wait(), Ranks{1});
  EXPECT_EQ(monitor->failed_peers().ranks, Ranks{1});
  // A callback that is registered later is called at once.
  Ranks received;
  const auto late = monitor->on_failure([&](const FailedPeers& failed_peers) { received = failed_peers.ranks; });
  EXPECT_EQ(received, Ranks{1});
}

TEST(HeartbeatMonitor, ARankThatSendsHeartbeatsIsNotReported) {
  const auto rendezvous = one_store(0);
  const auto monitor = monitor_of_three(rendezvous, alone, milliseconds(400));
  counter_of_pair_with(rendezvous, 1, PackedCounter::exited);
  for (int heartbeats = 0; heartbeats < 12; ++heartbeats) {
    const auto before = counter_of_pair_with(rendezvous, 2, PackedCounter::heartbeat);
    while (counter_of_pair_with(rendezvous, 2) == before) std::this_thread::yield();
  }
  EXPECT_EQ(monitor->failed_peers().ranks, Ranks{});
}

void wait_for_heartbeats(const Rendezvous& rendezvous, int count) {
  for (; count > 0; --count) {
    const auto before = counter_of_pair_with(rendezvous, 2);
    while (counter_of_pair_with(rendezvous, 2) == before) std::this_thread::yield();
  }
}

std::string published_status(const Rendezvous& rendezvous) {
  const auto bytes = rendezvous.store->get("peer_status");
  return {bytes.begin(), bytes.end()};
}

TEST(HeartbeatMonitor, SendsHeartbeatsAndAnnouncesItsExit) {
  for (const int store_owner : {-1, 0}) {
    const auto rendezvous = one_store(store_owner);
    auto monitor = monitor_of_three(rendezvous, alone, std::chrono::hours(1));
    wait_for_heartbeats(rendezvous, 1);
    monitor.reset();
    for (const int rank : {1, 2}) {
      EXPECT_TRUE(PackedCounter(counter_of_pair_with(rendezvous, rank)).has_exited()) << rank;
    }
    if (store_owner == 0) {
      EXPECT_EQ(published_status(rendezvous), "l0\n");
    }
  }
}

TEST(HeartbeatMonitor, PublishesFailedPeers) {
  const auto rendezvous = one_store(0);
  const auto monitor = monitor_of_three(rendezvous, alone, milliseconds(300));
  counter_of_pair_with(rendezvous, 1, PackedCounter::exited);
  while (PackedCounter(counter_of_pair_with(rendezvous, 2)).updates() == 0) std::this_thread::yield();
  EXPECT_EQ(published_status(rendezvous), "s2\n");
  // Pairs without rank 0 are informed too.
  while (PackedCounter(rendezvous.store->add("heartbeat_pair/1-2", 0)).updates() == 0) std::this_thread::yield();
}

TEST(HeartbeatMonitor, ReadsFailedPeersThatOthersPublished) {
  const auto rendezvous = one_store(0);
  const auto monitor = monitor_of_three(rendezvous, alone, std::chrono::hours(1));
  Alarm alarm;
  const auto on_alarm = monitor->on_failure(alarm.callback());
  rendezvous.store->set("peer_status", std::string("s2\n"));
  counter_of_pair_with(rendezvous, 1, PackedCounter::update);
  EXPECT_EQ(alarm.wait(), Ranks{2});
}

/// The identity of another process than this one.
ProcessIdentity identity_of(pid_t process) {
  ProcessIdentity identity = this_process();
  identity.pid = process;
  identity.nonce = random_nonce();
  return identity;
}

/// A child process that runs until this object is destroyed.
class RunningProcess {
 public:
  explicit RunningProcess(std::vector<std::string> words = {"/bin/sleep", "1000"}) {
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) pid_ = -1;
  }
  ~RunningProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RunningProcess(const RunningProcess&) = delete;
  RunningProcess& operator=(const RunningProcess&) = delete;

  void stop() const { ::kill(pid_, SIGSTOP); }
  /// Leaves a zombie: the process is not reaped yet.
  void end() const {
    ::kill(pid_, SIGKILL);
    siginfo_t exited{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &exited, WEXITED | WNOWAIT);
  }
  ProcessIdentity identity() const { return identity_of(pid_); }

 private:
  pid_t pid_ = -1;
};

/// A process that has exited and is not reaped.
class ExitedProcess {
 public:
  ExitedProcess() { process_.end(); }
  ProcessIdentity identity() const { return process_.identity(); }

 private:
  RunningProcess process_;
};

TEST(HeartbeatMonitor, PublishesThatTheNextProcessOnTheNodeHasExited) {
  const ExitedProcess process;
  const auto rendezvous = one_store(0);
  const auto monitor =
      monitor_of_three(rendezvous, with_local_peer, std::chrono::hours(1), {.process_of_1 = process.identity()});
  const GroupHealth group(std::shared_ptr<HeartbeatMonitor>(std::shared_ptr<HeartbeatMonitor>(), monitor.get()),
                          {0, 1});
  group.poll_fast();
  while (monitor->exited_ranks().empty()) std::this_thread::yield();
  EXPECT_EQ(monitor->exited_ranks(), Ranks{1});
  EXPECT_EQ(group.for_group({1}).exited_ranks(), Ranks{0});
  EXPECT_EQ(published_status(rendezvous), "e1\n");
  EXPECT_EQ(monitor->failed_peers().ranks, Ranks{}) << "what it has sent may still be read";
}

TEST(GroupHealth, NamesMembersByTheirRanksInTheGroup) {
  EXPECT_EQ(GroupHealth(nullptr, {1, 4, 6}).members_among({6, 2, 1}), (Ranks{0, 2}));
}

TEST(HeartbeatMonitor, AProcessThatHasAnnouncedItsExitMayExit) {
  RunningProcess process;
  const auto rendezvous = one_store(0);
  std::shared_ptr<LivenessTable> table;
  const auto monitor = monitor_of_three(rendezvous, with_local_peer, std::chrono::hours(1),
                                        {.process_of_1 = process.identity()}, &table);
  table->mark(1, LivenessTable::left | LivenessTable::inactive);
  process.end();
  monitor->poll_fast();
  wait_for_heartbeats(rendezvous, 5);
  EXPECT_EQ(monitor->exited_ranks(), Ranks{});
}

TEST(HeartbeatMonitor, TheLastLocalPeerAnnouncesTheExitOfAll) {
  for (const bool is_last : {true, false}) {
    const RunningProcess process;
    const auto rendezvous = one_store(-1);
    std::shared_ptr<LivenessTable> table;
    auto monitor = monitor_of_three(rendezvous, with_local_peer, std::chrono::hours(1),
                                    {.process_of_1 = process.identity()}, &table);
    if (is_last) table->mark(1, LivenessTable::inactive);
    monitor.reset();
    EXPECT_EQ(PackedCounter(counter_of_pair_with(rendezvous, 2)).has_exited(), is_last);
    EXPECT_EQ(table->marks(0), LivenessTable::left | LivenessTable::inactive);
  }
}

TEST(HeartbeatMonitor, AnExitingRankReportsThatTheNextProcessHasExited) {
  const RunningProcess process;
  const auto rendezvous = one_store(-1);
  auto monitor =
      monitor_of_three(rendezvous, with_local_peer, std::chrono::hours(1), {.process_of_1 = process.identity()});
  wait_for_heartbeats(rendezvous, 1);
  process.end();
  monitor.reset();
  EXPECT_EQ(published_status(rendezvous), "e1\n");
}

TEST(HeartbeatMonitor, ARemainingRankSendsTheHeartbeats) {
  const RunningProcess process;
  const auto rendezvous = one_store(0);
  std::shared_ptr<LivenessTable> table;
  const auto monitor = monitor_of_three(rendezvous, with_local_peer, std::chrono::hours(1),
                                        {.process_of_1 = process.identity()}, &table);
  // Rank 1 claims one heartbeat and no further heartbeats.
  while (!table->claim_heartbeat(1, milliseconds(0), Clock::now())) std::this_thread::yield();
  wait_for_heartbeats(rendezvous, 2);
  EXPECT_EQ(table->last_heartbeat().rank, 0);
}

TEST(HeartbeatMonitor, AllLocalPeersSeeWhatOneHasReceived) {
  const RunningProcess process;
  const auto rendezvous = one_store(0);
  std::shared_ptr<LivenessTable> table;
  const auto monitor = monitor_of_three(rendezvous, with_local_peer, std::chrono::hours(1),
                                        {.process_of_1 = process.identity()}, &table);
  Alarm alarm;
  const auto on_alarm = monitor->on_failure(alarm.callback());
  table->mark(2, LivenessTable::suspected);
  table->wake_all();
  EXPECT_EQ(alarm.wait(), Ranks{2});
  table->mark_store_unreachable();
  table->wake_all();
  while (!monitor->failed_peers().store) std::this_thread::yield();
  EXPECT_EQ(monitor->failed_peers().ranks, (Ranks{0, 1, 2})) << "rank 0 serves it";
}

TEST(HeartbeatMonitor, ARankWithoutLocalPeersHasExitedIfItsPortRefuses) {
  for (const bool has_announced_exit : {false, true}) {
    const auto rendezvous = one_store(0);
    auto liveness_port = std::make_unique<LivenessPort>("127.0.0.1");
    ASSERT_TRUE(liveness_port->address());
    const auto monitor =
        monitor_of_three(rendezvous, alone, std::chrono::hours(1), {.liveness_address_of_2 = liveness_port->address()});
    monitor->poll_fast();
    wait_for_heartbeats(rendezvous, 5);
    EXPECT_EQ(monitor->exited_ranks(), Ranks{}) << "it is there";
    if (has_announced_exit) counter_of_pair_with(rendezvous, 2, PackedCounter::exited);
    liveness_port.reset();
    monitor->poll_fast();
    if (has_announced_exit) {
      wait_for_heartbeats(rendezvous, 5);
      EXPECT_EQ(monitor->exited_ranks(), Ranks{});
    } else {
      while (monitor->exited_ranks().empty()) std::this_thread::yield();
      EXPECT_EQ(monitor->exited_ranks(), Ranks{2});
    }
  }
}

TEST(HeartbeatMonitor, APortThatRefusedFromTheBeginningIsIgnored) {
  const auto rendezvous = one_store(0);
  const auto closed_port = LivenessPort("127.0.0.1").address();
  const auto monitor =
      monitor_of_three(rendezvous, alone, std::chrono::hours(1), {.liveness_address_of_2 = closed_port});
  monitor->poll_fast();
  wait_for_heartbeats(rendezvous, 5);
  EXPECT_EQ(monitor->exited_ranks(), Ranks{}) << "a firewall may refuse too";
}

TEST(HeartbeatMonitor, AStoppedProcessOnTheNodeIsReported) {
  const auto rendezvous = one_store(0);
  RunningProcess process;
  const auto monitor =
      monitor_of_three(rendezvous, with_local_peer, milliseconds(300), {.process_of_1 = process.identity()});
  counter_of_pair_with(rendezvous, 2, PackedCounter::exited);
  wait_for_heartbeats(rendezvous, 5);
  EXPECT_EQ(monitor->failed_peers().ranks, Ranks{}) << "it runs";
  process.stop();
  while (monitor->failed_peers().ranks.empty()) std::this_thread::yield();
  EXPECT_EQ(monitor->failed_peers().ranks, Ranks{1});
}

TEST(PeerStatusUpdate, SurvivesEncoding) {
  const PeerStatusUpdate update{.suspected = {3, 1}, .exited = {2}, .left = {0}};
  const auto decoded = PeerStatusUpdate::decode(update.encode() + "s1\ns-1\ne4\nx0\n", 4);
  EXPECT_EQ(decoded.suspected, (Ranks{1, 3}));
  EXPECT_EQ(decoded.exited, Ranks{2});
  EXPECT_EQ(decoded.left, Ranks{0});
  EXPECT_EQ(PeerStatusUpdate::decode("", 4).suspected, Ranks{});
  EXPECT_EQ(PeerStatusUpdate::decode("s", 4).suspected, Ranks{});
}

/// Records whether the thread that constructed the store used the store before clone().
class RecordingStore final : public c10d::HashStore {
 public:
  std::int64_t add(const std::string& key, std::int64_t value) override {
    record_use();
    return HashStore::add(key, value);
  }
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override {
    record_use();
    HashStore::append(key, value);
  }
  c10::intrusive_ptr<Store> clone() override {
    was_used_before_clone = was_used_.load();
    return HashStore::clone();
  }

  std::optional<bool> was_used_before_clone;

 private:
  void record_use() {
    if (std::this_thread::get_id() == thread_) was_used_ = true;
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> was_used_ = false;
};

// Connecting may take seconds with a slow name service. After the rendezvous, peers would report missed heartbeats.
TEST(HeartbeatMonitor, ConnectsBeforeTheRendezvous) {
  const auto store = c10::make_intrusive<RecordingStore>();
  const auto monitor =
      monitor_of_three({.store = store, .failure_store = store, .store_owner = 0}, alone, milliseconds(60'000));
  EXPECT_EQ(store->was_used_before_clone, false);
}

TEST(HeartbeatMonitor, AReleasedCallbackIsNotCalled) {
  const auto rendezvous = one_store(0);
  const auto monitor = monitor_of_three(rendezvous, alone, milliseconds(1000));
  auto unwanted = monitor->on_failure([](const FailedPeers&) { ADD_FAILURE() << "it rang"; });
  Alarm alarm;
  const auto wanted = monitor->on_failure(alarm.callback());
  unwanted.reset();
  (void)alarm.wait();
}

}  // namespace
}  // namespace tutti::comm::heartbeat_monitor_test
