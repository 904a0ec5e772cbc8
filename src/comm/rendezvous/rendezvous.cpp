#include "comm/rendezvous/rendezvous.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cctype>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "comm/backend/describe.h"
#include "comm/rendezvous/local_port_discovery.h"
#include "comm/rendezvous/reconnecting_store.h"
#include "comm/rendezvous/store_bytes.h"
#include "comm/rendezvous/store_connector.h"
#include "core/launchers.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

constexpr auto reconnect_interval = std::chrono::milliseconds(100);
constexpr auto abort_poll_interval = std::chrono::milliseconds(250);
constexpr auto linger_timeout = std::chrono::seconds(2);
constexpr auto idle_timeout = std::chrono::milliseconds(300);
constexpr auto port_release_timeout = std::chrono::seconds(3);
/// Ranks that were given another number of ranks may not find the list complete. So a rank that waits looks again.
constexpr std::chrono::milliseconds second_look_delay = std::chrono::seconds(1);

bool is_port_in_use_error(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text.find("eaddrinuse") != std::string::npos || text.find("address already in use") != std::string::npos;
}

// Tries for `attempt_timeout`. `timeout` is the default timeout of later requests. Throws StoreUnreachable and
// PortInUse.
Rendezvous open_rendezvous(const Environment& environment, const JobSecretPtr& secret,
                           std::chrono::milliseconds attempt_timeout, std::chrono::milliseconds timeout) {
  const bool serve = rank_serves_store(environment);
  try {
    StoreConnector connector(environment, secret, attempt_timeout);
    Rendezvous rendezvous;
    rendezvous.store = connector.connect(attempt_timeout);
    rendezvous.failure_store = connector.connect(attempt_timeout);
    for (const auto& store : {rendezvous.store, rendezvous.failure_store}) store->setTimeout(timeout);
    rendezvous.store_owner = environment.agent_store && !secret ? -1 : 0;
    rendezvous.secret = secret;
    // A restarted job may find the keys of its earlier attempts where the agent's store outlives the ranks, and a
    // process may connect more than once: each attempt and each connect has names of its own.
    const std::string attempt = "tutti/" + std::to_string(environment.restart_count) + "/";
    const auto connects = rendezvous.store->add(attempt + "connects/" + std::to_string(environment.rank), 1);
    std::vector<int> all_ranks(static_cast<std::size_t>(environment.world_size));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    return rendezvous_of_group(rendezvous, attempt + std::to_string(connects), all_ranks);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    if (!secret && environment.num_nodes > 1 && !serve && server_requires_auth(environment)) {
      throw UsageError("The job at " + environment.master_addr + ":" + std::to_string(environment.master_port) +
                       " asks for its secret, and rank " + std::to_string(environment.rank) +
                       " was given none: set TUTTI_JOB_SECRET_FILE as on the other ranks.");
    }
    if (serve && is_port_in_use_error(error.what())) throw PortInUse{first_line(error.what())};
    throw StoreUnreachable{first_line(error.what())};
  }
}

std::string describe_store_address(const Environment& environment) {
  const bool one_node = environment.num_nodes == 1 && !environment.agent_store;
  const std::string host = one_node ? "127.0.0.1:" : environment.master_addr + ":";
  return host + std::to_string(environment.master_port) + (one_node ? " (all ranks are on one node)" : "");
}

constexpr const char* all_joined = "all joined";

// What the store holds then: "all joined", or "absent 3 5".
std::string encode_outcome(const std::vector<int>& ranks) {
  if (ranks.empty()) return all_joined;
  std::string text = "absent";
  for (const int rank : ranks) text.append(" ").append(std::to_string(rank));
  return text;
}

std::vector<int> parse_absent(const std::string& outcome) {
  if (outcome == all_joined) return {};
  std::istringstream words(outcome);
  std::string absent;
  words >> absent;
  return {std::istream_iterator<int>(words), {}};
}

[[noreturn]] void throw_absent(const std::vector<int>& absent, int size, std::chrono::milliseconds timeout) {
  throw TimeoutError(describe_ranks(absent) + " did not join within " + describe_duration(timeout) +
                         "; the other ranks are waiting. Check that all " + std::to_string(size) +
                         " ranks were started, each with a RANK of its own and the same MASTER_ADDR and MASTER_PORT.",
                     absent);
}

// A list that ranks append to, in one request where the store can do that: a file cannot.
void append(c10d::Store& store, const std::string& list, const std::string& entry) {
  if (store.hasExtendedApi()) {
    store.append(list, as_bytes(entry));
    return;
  }
  store.set(list + "/" + std::to_string(store.add(list, 1)), entry);
}

/// All that was appended, one behind the other; something must have been.
std::string read_entries(c10d::Store& store, const std::string& list) {
  if (store.hasExtendedApi()) return as_text(store.get(list));
  std::string entries;
  for (std::int64_t last = store.add(list, 0), number = 1; number <= last; ++number) {
    const std::string key = list + "/" + std::to_string(number);
    if (store.check({key})) entries += as_text(store.get(key));  // else it is just being written
  }
  return entries;
}

// By rank; nullopt for those that have left nothing yet.
std::vector<std::optional<std::string>> read_values(c10d::Store& store, const std::string& list, int size) {
  return parse_entries(read_entries(store, list), size);
}

std::vector<int> absent_ranks(const std::vector<std::optional<std::string>>& values) {
  std::vector<int> absent;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    if (!values[rank]) absent.push_back(static_cast<int>(rank));
  }
  return absent;
}

// Waits for `key`. Returns false at the timeout. Throws what the store throws, and PeerError where `is_aborted` says
// so.
bool wait_for_key(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout,
                  const std::function<bool()>& is_aborted) {
  const auto deadline = Clock::now() + timeout;
  auto remaining = timeout;
  for (;;) {
    try {
      store.wait({key}, is_aborted ? std::min(remaining, abort_poll_interval) : remaining);
      return true;
    } catch (const std::exception&) {
      // A timeout, or the connection to the store was lost: check() throws in that case.
      if (store.check({key})) return true;
    }
    remaining = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (remaining <= std::chrono::milliseconds::zero()) return false;
    if (is_aborted && is_aborted()) throw PeerError("the communicator was closed", {});
  }
}

/// The lowest rank that has joined logs which ranks have not.
void log_absent(const std::vector<int>& absent, int rank, std::chrono::milliseconds timeout) {
  for (int lower = 0; lower < rank; ++lower) {
    if (std::ranges::find(absent, lower) == absent.end()) return;
  }
  if (absent.empty()) return;
  Logger(rank).warning("connecting has waited for " + describe_duration(absence_log_delay) + " for " +
                       describe_ranks(absent) + (absent.size() == 1 ? ", which has" : ", which have") +
                       " not joined. It fails after " + describe_duration(timeout) + " (connect_timeout).");
}

// Each rank appends its value to a list. The rank that finds the list complete sets the outcome; a rank that times out
// sets the absent ranks as the outcome. The first outcome holds, so that all ranks read the same one: also ranks that
// join later, and ranks that began to wait later. Throws StoreUnreachable, TimeoutError and, where `is_aborted` says
// so, PeerError.
std::vector<std::string> gather_values(c10d::Store& store, const std::string& topic, int rank, int size,
                                       const std::string& value, std::chrono::milliseconds timeout,
                                       const std::function<bool()>& is_aborted = nullptr) {
  const std::string list = topic + "/values";
  const std::string outcome = topic + "/outcome";
  try {
    const auto find_absent = [&] { return absent_ranks(read_values(store, list, size)); };
    const auto set_outcome = [&](const std::vector<int>& absent) {
      store.compareSet(outcome, std::string(), encode_outcome(absent));
    };
    append(store, list, encode_entry(rank, value));
    // Two processes may have been given the same rank: the number of those that came is not enough.
    if (store.add(topic + "/count", 1) >= size && find_absent().empty()) set_outcome({});
    const auto begin = Clock::now();
    const auto wait_until = [&](std::chrono::milliseconds end) {
      const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      const auto rest = std::max(std::min(end, timeout) - passed, std::chrono::milliseconds(1));
      return wait_for_key(store, outcome, rest, is_aborted);
    };
    if (!wait_until(second_look_delay)) {
      if (find_absent().empty()) set_outcome({});
      if (!wait_until(absence_log_delay)) {
        if (timeout > absence_log_delay) log_absent(find_absent(), rank, timeout);
        if (!wait_until(timeout)) set_outcome(find_absent());
      }
    }
    const auto decided = store.get(outcome);
    const auto absent = parse_absent(as_text(decided));
    if (std::ranges::find(absent, rank) != absent.end()) {
      throw TimeoutError("the other ranks timed out waiting for this rank (" + std::to_string(rank) + ")", {rank});
    }
    if (!absent.empty()) throw_absent(absent, size, timeout);
    std::vector<std::string> all;
    // Ranks that were given a smaller size do not wait for all: their values say so.
    for (auto& found : read_values(store, list, size)) all.push_back(std::move(found).value_or(""));
    return all;
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    throw StoreUnreachable{first_line(error.what())};
  }
}

// One list that ranks append to and read whole: a look costs two calls whatever the number of ranks, so that many that
// fail at once do not keep the store busy until they take it for gone.
class StoreFailureBoard final : public FailureBoard {
 public:
  StoreFailureBoard(const Rendezvous& rendezvous, int size, PeerStatusSource status_source)
      : store_(rendezvous.failure_store),
        store_owner_(rendezvous.store_owner),
        size_(size),
        status_source_(std::move(status_source)) {}

  void publish(int rank, const std::string& text) override { append(*store_, key, encode_entry(rank, text)); }
  std::vector<std::optional<std::string>> read() override {
    if (!store_->check({key})) return std::vector<std::optional<std::string>>(static_cast<std::size_t>(size_));
    return read_values(*store_, key, size_);
  }
  std::vector<int> exited_ranks() override {
    return status_source_.exited_ranks ? status_source_.exited_ranks() : std::vector<int>();
  }
  bool is_reachable() override { return !status_source_.is_store_reachable || status_source_.is_store_reachable(); }
  int owner() const override { return store_owner_; }

 private:
  static constexpr const char* key = "failed";

  c10::intrusive_ptr<c10d::Store> store_;
  int store_owner_;
  int size_;
  PeerStatusSource status_source_;
};

// A process that connects again may reach the store of its last connect while rank 0 is closing it. So after a lost
// connection it tries again until the timeout. For the same reason the port may be in use for a short time,
// also by a rank whose search for the store was given that very port as its own end.
JobRendezvous join_store(const Environment& environment, const std::string& value, std::chrono::milliseconds timeout) {
  // Jobs of one node do not touch the network.
  const auto secret = environment.num_nodes > 1 ? read_job_secret(&process_variable) : nullptr;
  if (environment.num_nodes > 1 && !secret) {
    Logger(environment.rank)
        .info("this job has no secret: any process that reaches " + describe_store_address(environment) +
              " can join it (TUTTI_JOB_SECRET_FILE sets one)");
  }
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  bool is_logged = rank_serves_store(environment);  // that the store is unreachable
  const auto time_until = [](Deadline end) {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()),
                    std::chrono::milliseconds(1));
  };
  for (;;) {
    Rendezvous rendezvous;  // out here: it may have to outlive the exception
    try {
      const auto end_of_attempt = is_logged ? deadline : std::min(deadline, begin + absence_log_delay);
      rendezvous = open_rendezvous(environment, secret, time_until(end_of_attempt), timeout);
      auto values = gather_values(*rendezvous.store, "job", environment.rank, environment.world_size, value, timeout);
      return {std::move(rendezvous), std::move(values)};
    } catch (const TimeoutError&) {
      // Keep the store for linger_timeout, so that the other ranks can read the outcome.
      if (rank_serves_store(environment)) std::this_thread::sleep_for(linger_timeout);
      throw;
    } catch (const PortInUse& in_use) {
      if (Clock::now() - begin > std::min<Clock::duration>(port_release_timeout, timeout)) {
        throw UsageError("rank 0 cannot serve the store: port " + std::to_string(environment.master_port) +
                         " is in use. Choose another MASTER_PORT, or end the job that holds it. (" + in_use.cause +
                         ")");
      }
      std::this_thread::sleep_for(reconnect_interval);
    } catch (const StoreUnreachable& unreachable) {
      if (rank_serves_store(environment) || Clock::now() + reconnect_interval > deadline) {
        throw TimeoutError(
            "rank " + std::to_string(environment.rank) + " could not reach the store at " +
                describe_store_address(environment) + " within " + describe_duration(timeout) +
                ". Check that rank 0 runs there, that MASTER_ADDR and MASTER_PORT are the same on all ranks, "
                "and that no firewall is between. (" +
                unreachable.cause + ")",
            {0});
      }
      if (!is_logged && Clock::now() + reconnect_interval > begin + absence_log_delay) {
        is_logged = true;
        Logger(environment.rank)
            .warning("this rank has tried for " + describe_duration(absence_log_delay) + " to reach the store at " +
                     describe_store_address(environment) +
                     ": rank 0 has not joined, or the address differs. It fails after " + describe_duration(timeout) +
                     " (connect_timeout).");
      }
      std::this_thread::sleep_for(reconnect_interval);
    }
  }
}

}  // namespace

Rendezvous rendezvous_of_group(const Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members) {
  const auto position = std::find(members.begin(), members.end(), rendezvous.store_owner);
  return {.store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous.store),
          .failure_store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous.failure_store),
          .store_owner = position == members.end() ? -1 : static_cast<int>(position - members.begin()),
          .secret = rendezvous.secret};
}

JobRendezvous join_job(const Environment& environment, const std::string& value, std::chrono::milliseconds timeout) {
  if (!environment.master_addr.starts_with(local_store_scheme)) return join_store(environment, value, timeout);
  const std::string job = environment.master_addr.substr(local_store_scheme.size());
  Environment found = environment;
  found.master_addr = "127.0.0.1";
  if (environment.rank != 0) {
    const auto deadline = Clock::now() + timeout;
    found.master_port = query_port(job, environment.rank, timeout);
    const auto remaining = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    return join_store(found, value, std::max(remaining, std::chrono::milliseconds(1)));
  }
  const LoopbackSocket socket = listen_on_loopback();  // the store takes it over
  found.master_port = socket.port;
  found.master_listen_fd = socket.descriptor;
  const PortServer server(job, socket.port, environment.world_size);
  return join_store(found, value, timeout);
}

std::vector<std::string> store_all_gather(const Rendezvous& rendezvous, const std::string& topic, int rank, int size,
                                          const std::string& value, std::chrono::milliseconds timeout,
                                          const std::function<bool()>& is_aborted) {
  try {
    return gather_values(*rendezvous.store, topic, rank, size, value, timeout, is_aborted);
  } catch (const StoreUnreachable& unreachable) {
    const std::vector<int> owners(rendezvous.store_owner < 0 ? 0U : 1U, rendezvous.store_owner);
    throw PeerError(
        "Lost the connection to the job's store: rank 0 or the launcher has exited. (" + unreachable.cause + ")",
        owners);
  }
}

void drop_idle_connections(const Rendezvous& rendezvous) {
  for (const auto& store : {rendezvous.store, rendezvous.failure_store}) {
    const auto prefix = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
    const auto underlying = prefix ? prefix->getUnderlyingNonPrefixStore() : store;
    if (const auto reconnecting = c10::dynamic_intrusive_pointer_cast<ReconnectingStore>(underlying))
      reconnecting->disconnect_if_idle(idle_timeout);
  }
}

void leave_barrier(const Rendezvous& rendezvous, int rank, int size) noexcept {
  try {
    rendezvous.store->set("leave/" + std::to_string(rank), std::string("yes"));
    std::vector<std::string> keys;
    for (int other = 0; other < size; ++other) keys.push_back("leave/" + std::to_string(other));
    rendezvous.store->wait(keys, linger_timeout);
  } catch (const std::exception&) {
    // A rank that is late or has left already waits for no other rank.
  }
}

std::shared_ptr<FailureBoard> make_store_failure_board(const Rendezvous& rendezvous, int size,
                                                       PeerStatusSource status_source) {
  return std::make_shared<StoreFailureBoard>(rendezvous, size, std::move(status_source));
}

}  // namespace tutti::comm
