#include "comm/health/heartbeat_monitor.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "comm/backend/failure_timeouts.h"
#include "comm/health/heartbeat_store.h"
#include "comm/health/liveness_port.h"
#include "comm/health/liveness_tracker.h"
#include "comm/health/local_peers.h"
#include "comm/health/peer_status.h"
#include "core/describe.h"
#include "core/thread_name.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

constexpr auto fast_poll_interval = std::chrono::milliseconds(15);
constexpr auto fast_poll_duration = std::chrono::seconds(1);
constexpr auto monitor_shutdown_timeout = std::chrono::milliseconds(300);
constexpr auto propagation_delay = std::chrono::milliseconds(50);

}  // namespace

// The state that the threads share. A request to an unreachable store ends only with the connection, so no thread waits
// for the store thread without a timeout.
struct HeartbeatMonitor::Shared {
  Shared(LocalPeerMap local_peers_, HeartbeatStore heartbeat_store_, LivenessPort liveness_port_, int store_owner_,
         const HeartbeatMonitorOptions& options)
      : local_peers(std::move(local_peers_)),
        table(local_peers.table),
        heartbeat_store(std::move(heartbeat_store_)),
        liveness_port(std::move(liveness_port_)),
        rank(options.rank),
        store_owner(store_owner_),
        node_of_rank(options.node_of_rank),
        heartbeat_timeout(options.heartbeat_timeout),
        interval(heartbeat_interval(local_peers.count())),
        tracker(heartbeat_store.peers(), store_owner, heartbeat_timeout + interval - heartbeat_interval(1),
                Clock::now()) {}

  const LocalPeerMap local_peers;
  const std::shared_ptr<LivenessTable> table;
  HeartbeatStore heartbeat_store;  // of the asking thread
  LivenessPort liveness_port;      // likewise
  const int rank;
  const int store_owner;
  const std::vector<int> node_of_rank;
  const std::chrono::milliseconds heartbeat_timeout;
  const std::chrono::milliseconds interval;

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;       // the monitor is being destroyed
  bool failed = false;         // because of an exception
  int running_threads = 2;     // threads
  bool is_requesting = false;  // the thread is not ready for anything else
  std::optional<std::uint32_t> pending_heartbeat;
  PeerStatusUpdate pending_update;  // found by this rank
  LivenessTracker tracker;
  FailedPeers failed_peers;
  std::list<Callback> callbacks;
  std::set<int> logged;  // the ranks whose stop or missed heartbeats this rank has logged; -1 for the store

  // The next local peer whose process runs.
  int next_peer = -1;
  std::optional<ProcessProbe> next_process;
  StoppedDuration next_stopped{Clock::now()};

  bool owns_store() const { return store_owner == rank; }
  bool polls_fast() const { return Clock::now() < table->fast_polling_until(); }

  /// The thread that asks the store.
  void run_store_thread() {
    try {
      std::unique_lock lock(mutex);
      for (;;) {
        is_requesting = false;
        changed.wait(lock, [&] { return stopping || pending_heartbeat || !pending_update.encode().empty(); });
        is_requesting = true;
        if (stopping) break;
        if (const auto own_heartbeats = std::exchange(pending_heartbeat, std::nullopt))
          send_heartbeat(*own_heartbeats, lock);
        publish(lock);
      }
      // No other rank may watch that process, and ranks that wait for it must learn of its exit. The exit of the rank
      // that serves the store matters to all ranks.
      check_next_peer();
      if (owns_store() && !failed) pending_update.left.push_back(store_owner);
      publish(lock);
      lock.unlock();
      if (!failed && is_last_local_peer()) heartbeat_store.announce_exit();
    } catch (const std::exception&) {
      // The store has ended with its process.
      const std::lock_guard lock(mutex);
      stopping = stopping || tracker.on_store_lost();
      table->wake_all();
    }
  }

  void send_heartbeat(std::uint32_t own_heartbeats, std::unique_lock<std::mutex>& lock) {
    tracker.on_request(Clock::now());
    lock.unlock();
    liveness_port.drain_connections();
    const auto reply = heartbeat_store.send_heartbeat(own_heartbeats, polls_fast());
    lock.lock();
    tracker.on_reply();
    table->record_reply(heartbeat_store.peers(), reply.heartbeats, Clock::now());
    for (const int other : reply.exited) report_exit(other);
    if (!reply.update) return;
    table->mark(*reply.update);
    table->wake_all();
  }

  void publish(std::unique_lock<std::mutex>& lock) {
    const auto update = std::exchange(pending_update, {});
    if (update.encode().empty()) return;
    tracker.on_request(Clock::now());
    lock.unlock();
    heartbeat_store.publish(update);
    lock.lock();
    tracker.on_reply();
  }

  /// Whether all other local peers have exited. Killed ranks have not announced it.
  bool is_last_local_peer() const {
    return std::ranges::all_of(local_peers.members(local_peers.leader[static_cast<std::size_t>(rank)]), [&](int other) {
      return (table->marks(other) & (LivenessTable::inactive | LivenessTable::exited)) != 0 ||
             ProcessProbe(process_of(other)).state() == ProcessState::exited;
    });
  }

  pid_t process_of(int other) const { return local_peers.infos[static_cast<std::size_t>(other)].table.process.pid; }

  /// The thread that listens.
  void run_poll_thread() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      const auto generation_seen = table->generation();
      read_table();
      check_next_peer();
      check_heartbeats();
      claim_next_heartbeat();
      const auto until = next_poll();
      tracker.set_next_check(until);
      lock.unlock();
      table->sleep(generation_seen, until);
      lock.lock();
    }
    changed.notify_all();
  }

  void read_table() {
    std::vector<std::int64_t> heartbeats;
    for (const int other : heartbeat_store.peers()) heartbeats.push_back(table->heartbeats(other));
    if (const auto last_reply = table->last_reply(); last_reply != Deadline{})
      tracker.on_heartbeats(heartbeats, last_reply);
    const auto update = table->status();
    if (std::ranges::find(update.left, store_owner) != update.left.end()) tracker.on_owner_exit();
    fail_peers(update.suspected);
    if (table->store_unreachable()) fail_store();
  }

  void check_next_peer() {
    const auto is_running = [&](int other) {
      return (table->marks(other) & (LivenessTable::exited | LivenessTable::left)) == 0;
    };
    const auto now = Clock::now();
    if (const int peer = next_local_peer(rank, local_peers.leader, is_running);
        std::exchange(next_peer, peer) != peer) {
      next_process.reset();
      next_stopped = StoppedDuration(now);
      if (next_peer >= 0) next_process.emplace(process_of(next_peer));
    }
    if (!next_process) return;
    const auto state = next_process->state();
    if (state == ProcessState::exited && is_running(next_peer)) report_exit(next_peer);
    next_stopped.check(now, state == ProcessState::stopped);
    if (next_stopped.is_expired(heartbeat_timeout, polls_fast())) report_suspected({next_peer});
    log_if(next_stopped.value() >= report_delay, {next_peer}, "been stopped", "SIGSTOP or Ctrl+Z");
  }

  /// Whether this rank has waited for any of the others for long enough.
  void check_heartbeats() {
    const auto now = Clock::now();
    const auto suspects = tracker.check(now);
    if (suspects.store && !failed_peers.store) {
      fail_store();
      table->mark_store_unreachable();
      table->wake_all();
    }
    for (const int leader : suspects.ranks) report_suspected(local_peers.members(leader));
    log_silent_peers(tracker.silent_for(report_delay, now));
  }

  void log_silent_peers(const LivenessTracker::Suspects& silent) {
    log_if(silent.store, {}, "not answered", "network partition, or its host is down");
    if (silent.store) return;
    for (const int leader : heartbeat_store.peers()) {
      log_if(std::ranges::binary_search(silent.ranks, leader), local_peers.members(leader), "missed heartbeats",
             "host down, network partition, or process stopped");
    }
  }

  /// Logs once what has lasted for report_delay. `ranks` are empty for the store, else local peers of one another.
  void log_if(bool lasts, const std::vector<int>& ranks, const std::string& what, const std::string& cause) {
    const int first = ranks.empty() ? -1 : ranks.front();
    if (!lasts) {
      if (logged.erase(first) > 0) table->release_log(first);
      return;
    }
    const bool has_failed = ranks.empty() ? failed_peers.store : std::ranges::binary_search(failed_peers.ranks, first);
    if (has_failed || logged.contains(first) || !table->claim_log(first)) return;
    logged.insert(first);
    Logger(rank).warning((ranks.empty() ? "the job's store" : describe_ranks(ranks)) +
                         (ranks.size() > 1 ? " have " : " has ") + what + " for " + describe_duration(report_delay) +
                         " (" + cause + "). This is a failure after " + describe_duration(heartbeat_timeout) +
                         " (CommunicatorOptions::heartbeat_timeout).");
  }

  void report_exit(int other) {
    table->mark(other, LivenessTable::exited);
    pending_update.exited.push_back(other);
    table->wake_all();
    changed.notify_all();
  }

  void report_suspected(const std::vector<int>& ranks) {
    const auto more = fail_peers(ranks);
    if (more.empty()) return;
    for (const int other : more) {
      table->mark(other, LivenessTable::suspected);
      pending_update.suspected.push_back(other);
    }
    table->wake_all();
    changed.notify_all();
  }

  void claim_next_heartbeat() {
    if (is_requesting || pending_heartbeat) return;
    pending_heartbeat = table->claim_heartbeat(rank, current_interval(), Clock::now());
    if (pending_heartbeat) changed.notify_all();
  }

  std::chrono::milliseconds current_interval() const {
    if (polls_fast()) return fast_poll_interval;
    return tracker.is_suspect(Clock::now()) ? StoppedDuration::close_poll_interval : interval;
  }

  Deadline next_poll() const {
    const auto now = Clock::now();
    if (polls_fast()) return now + fast_poll_interval;
    if (next_stopped.is_stopped() || tracker.is_suspect(now)) return now + StoppedDuration::close_poll_interval;
    const auto slow_poll = now + StoppedDuration::poll_interval;
    if (!table->is_sender(rank)) return slow_poll;
    return std::clamp(next_heartbeat(table->last_heartbeat(), true, interval), now + fast_poll_interval, slow_poll);
  }

  void fail_store() {
    if (std::exchange(failed_peers.store, true)) return;
    add_failed_peers(ranks_on_owner_node());
    call_back();
  }

  std::vector<int> ranks_on_owner_node() const {
    std::vector<int> ranks;
    for (std::size_t other = 0; store_owner >= 0 && other < node_of_rank.size(); ++other) {
      const bool same_node = node_of_rank[other] == node_of_rank[static_cast<std::size_t>(store_owner)];
      if (same_node) ranks.push_back(static_cast<int>(other));
    }
    return ranks;
  }

  /// Returns those that had not been before.
  std::vector<int> fail_peers(const std::vector<int>& ranks) {
    auto more = add_failed_peers(ranks);
    if (!more.empty()) call_back();
    return more;
  }

  std::vector<int> add_failed_peers(const std::vector<int>& ranks) {
    std::vector<int> more;
    std::ranges::set_difference(ranks, failed_peers.ranks, std::back_inserter(more));
    failed_peers.ranks.insert(failed_peers.ranks.end(), more.begin(), more.end());
    std::ranges::sort(failed_peers.ranks);
    return more;
  }

  void call_back() {
    for (const Callback& callback : callbacks) callback(failed_peers);
  }

  void finish_thread() {
    const std::lock_guard lock(mutex);
    --running_threads;
    changed.notify_all();
  }
};

HeartbeatMonitor::HeartbeatMonitor(const Rendezvous& rendezvous, const HeartbeatMonitorOptions& options)
    : heartbeat_timeout_(options.heartbeat_timeout) {
  // Before the ranks meet: to connect may take a rank seconds, where a name service is slow, and none may be watched
  // yet.
  auto store = rendezvous.store->clone();
  LivenessPort liveness_port(options.host);
  auto local_peers = discover_local_peers(rendezvous, options.rank, options.node_of_rank, liveness_port.address(),
                                          options.connect_timeout);
  if (!local_peers.is_alone(options.rank)) liveness_port = LivenessPort();
  HeartbeatStore heartbeat_store(std::move(store), options.rank, options.node_of_rank, local_peers);
  shared_ = std::make_shared<Shared>(std::move(local_peers), std::move(heartbeat_store), std::move(liveness_port),
                                     rendezvous.store_owner, options);
  for (const auto run : {&Shared::run_store_thread, &Shared::run_poll_thread}) {
    std::thread([shared = shared_, run] {
      name_this_thread(run == &Shared::run_store_thread ? "tutti-heartbeat" : "tutti-liveness");
      ((*shared).*run)();
      shared->finish_thread();
    }).detach();
  }
}

HeartbeatMonitor::~HeartbeatMonitor() {
  const bool failed = std::uncaught_exceptions() > 0;
  LivenessTable& table = *shared_->table;
  table.mark(shared_->rank, failed ? LivenessTable::inactive : LivenessTable::inactive | LivenessTable::left);
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->failed = failed;
  shared_->changed.notify_all();
  table.wake_all();
  shared_->changed.wait_for(lock, monitor_shutdown_timeout, [&] { return shared_->running_threads == 0; });
  const bool lingers = shared_->owns_store() && (!failed || !shared_->failed_peers.ranks.empty());
  const auto interval = shared_->interval;
  lock.unlock();
  // The other ranks must read the exit announcement or the failed peers before the store closes.
  if (lingers) std::this_thread::sleep_for(interval + propagation_delay);
}

FailedPeers HeartbeatMonitor::failed_peers() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failed_peers;
}

std::vector<int> HeartbeatMonitor::exited_ranks() const {
  return shared_->table->status().exited;
}

void HeartbeatMonitor::poll_fast() {
  LivenessTable& table = *shared_->table;
  const auto now = Clock::now();
  if (table.fast_polling_until() > now + fast_poll_duration / 2) return;
  table.poll_fast_until(now + fast_poll_duration);
  table.wake_all();
}

std::shared_ptr<void> HeartbeatMonitor::on_failure(Callback callback) {
  const std::lock_guard lock(shared_->mutex);
  if (const auto& failed_peers = shared_->failed_peers; failed_peers.store || !failed_peers.ranks.empty())
    callback(failed_peers);
  auto& callbacks = shared_->callbacks;
  const auto position = callbacks.insert(callbacks.end(), std::move(callback));
  return {shared_.get(), [shared = shared_, position](void*) {
            const std::lock_guard lock_again(shared->mutex);
            shared->callbacks.erase(position);
          }};
}

void GroupHealth::throw_if_heartbeat_lost() const {
  if (!monitor_) return;
  const auto failed_peers = monitor_->failed_peers();
  if (!affects(failed_peers)) return;
  throw TransferError(TransferError::Kind::heartbeat_lost, members_among(failed_peers.ranks), "missed heartbeats",
                      monitor_->heartbeat_timeout());
}

GroupHealth GroupHealth::for_group(const std::vector<int>& members) const {
  std::vector<int> global_ranks;
  for (const int member : members) global_ranks.push_back(global_ranks_.at(static_cast<std::size_t>(member)));
  return {monitor_, std::move(global_ranks)};
}

// Called only after a connection has closed, so poll quickly for the cause.
std::vector<int> GroupHealth::exited_ranks() const {
  poll_fast();
  return monitor_ ? members_among(monitor_->exited_ranks()) : std::vector<int>();
}

void GroupHealth::poll_fast() const {
  if (monitor_) monitor_->poll_fast();
}

std::vector<int> GroupHealth::members_among(const std::vector<int>& global_ranks) const {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < global_ranks_.size(); ++rank) {
    if (std::ranges::find(global_ranks, global_ranks_[rank]) != global_ranks.end())
      members.push_back(static_cast<int>(rank));
  }
  return members;
}

}  // namespace tutti::comm
