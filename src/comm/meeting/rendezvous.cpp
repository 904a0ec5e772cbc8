#include "comm/meeting/rendezvous.h"

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

#include "comm/engine/describe.h"
#include "comm/meeting/blame.h"
#include "comm/meeting/local_meeting.h"
#include "comm/meeting/store_bytes.h"
#include "comm/meeting/store_door.h"
#include "comm/meeting/store_on_demand.h"
#include "core/launchers.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

constexpr auto between_attempts = std::chrono::milliseconds(100);
constexpr auto between_questions = std::chrono::milliseconds(250);
constexpr auto linger = std::chrono::seconds(2);
constexpr auto idle = std::chrono::milliseconds(300);
constexpr auto port_may_be_left = std::chrono::seconds(3);

bool says_port_in_use(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text.find("eaddrinuse") != std::string::npos || text.find("address already in use") != std::string::npos;
}

bool serves_store(const Environment& environment) {
  return environment.rank == 0 && !environment.agent_store;
}

// Throws StoreLost and PortInUse.
Rendezvous open_rendezvous(const Environment& environment, const JobSecretPtr& secret,
                           std::chrono::milliseconds timeout) {
  const bool serve = serves_store(environment);
  try {
    StoreDoor door(environment, secret, timeout);
    Rendezvous rendezvous;
    rendezvous.store = door.connect(timeout);
    rendezvous.bulletin_store = door.connect(timeout);
    rendezvous.holder = environment.agent_store && !secret ? -1 : 0;
    rendezvous.secret = secret;
    // A restarted job may find the keys of its earlier attempts where the agent's store outlives the ranks, and a
    // process may connect more than once: each attempt and each connect has names of its own.
    const std::string attempt = "tutti/" + std::to_string(environment.restart_count) + "/";
    const auto connects = rendezvous.store->add(attempt + "connects/" + std::to_string(environment.rank), 1);
    std::vector<int> everyone(static_cast<std::size_t>(environment.world_size));
    std::iota(everyone.begin(), everyone.end(), 0);
    return rendezvous_of_group(rendezvous, attempt + std::to_string(connects), everyone);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    if (!secret && environment.num_nodes > 1 && !serve && is_asked_for_proof(environment)) {
      throw UsageError("The job at " + environment.master_addr + ":" + std::to_string(environment.master_port) +
                       " asks for its secret, and rank " + std::to_string(environment.rank) +
                       " was given none: set TUTTI_JOB_SECRET_FILE as on the other ranks.");
    }
    if (serve && says_port_in_use(error.what())) throw PortInUse{first_line(error.what())};
    throw StoreLost{first_line(error.what())};
  }
}

std::string where_store_is(const Environment& environment) {
  const bool one_node = environment.num_nodes == 1 && !environment.agent_store;
  const std::string place = one_node ? "127.0.0.1:" : environment.master_addr + ":";
  return place + std::to_string(environment.master_port) + (one_node ? " (all ranks are on one node)" : "");
}

constexpr const char* all_came = "all came";

// What the store holds then: "all came", or "absent 3 5".
std::string outcome_without(const std::vector<int>& ranks) {
  if (ranks.empty()) return all_came;
  std::string text = "absent";
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return text;
}

std::vector<int> absent_in(const std::string& outcome) {
  if (outcome == all_came) return {};
  std::istringstream words(outcome);
  std::string absent;
  words >> absent;
  return {std::istream_iterator<int>(words), {}};
}

[[noreturn]] void throw_absent(const std::vector<int>& absent, int size, std::chrono::milliseconds timeout) {
  throw Timeout(describe_ranks(absent) + " did not come within " + describe_duration(timeout) +
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
std::string entries_in(c10d::Store& store, const std::string& list) {
  if (store.hasExtendedApi()) return as_text(store.get(list));
  std::string entries;
  for (std::int64_t last = store.add(list, 0), number = 1; number <= last; ++number) {
    const std::string key = list + "/" + std::to_string(number);
    if (store.check({key})) entries += as_text(store.get(key));  // else it is just being written
  }
  return entries;
}

// By rank; nullopt for those that have left nothing yet.
std::vector<std::optional<std::string>> values_in(c10d::Store& store, const std::string& list, int size) {
  return posts_in(entries_in(store, list), size);
}

std::vector<int> absent_from(const std::vector<std::optional<std::string>>& values) {
  std::vector<int> absent;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    if (!values[rank]) absent.push_back(static_cast<int>(rank));
  }
  return absent;
}

// Whether `key` has come to stand there. Throws what the store throws, and PeerFailure where `given_up` says so.
bool wait_for_key(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout,
                  const std::function<bool()>& given_up) {
  const auto deadline = Clock::now() + timeout;
  auto left = timeout;
  for (;;) {
    try {
      store.wait({key}, given_up ? std::min(left, between_questions) : left);
      return true;
    } catch (const std::exception&) {
      // Too late, or the store is gone: what follows tells.
      if (store.check({key})) return true;
    }
    left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left <= std::chrono::milliseconds::zero()) return false;
    if (given_up && given_up()) throw PeerFailure("the channel was given up", {});
  }
}

// A rank appends its value to a list, and whoever finds the list complete says so to all. A rank that waited too long
// says instead who is absent. The first word holds, so that all ranks hear the same: also those that come later, and
// those that began to wait later. Throws StoreLost, Timeout and, where `given_up` says so, PeerFailure.
std::vector<std::string> exchange_values(c10d::Store& store, const std::string& topic, int rank, int size,
                                         const std::string& value, std::chrono::milliseconds timeout,
                                         const std::function<bool()>& given_up = nullptr) {
  const std::string list = topic + "/values";
  const std::string outcome = topic + "/outcome";
  try {
    const auto absent_now = [&] { return absent_from(values_in(store, list, size)); };
    const auto say = [&](const std::vector<int>& absent) {
      store.compareSet(outcome, std::string(), outcome_without(absent));
    };
    append(store, list, to_entry(rank, value));
    // Two processes may have been given the same rank: the number of those that came is not enough.
    if (store.add(topic + "/count", 1) >= size && absent_now().empty()) say({});
    if (!wait_for_key(store, outcome, timeout, given_up)) say(absent_now());
    const auto said = store.get(outcome);
    const auto absent = absent_in(as_text(said));
    if (std::ranges::find(absent, rank) != absent.end()) {
      throw Timeout("the other ranks gave up waiting for this rank (" + std::to_string(rank) + ")", {rank});
    }
    if (!absent.empty()) throw_absent(absent, size, timeout);
    std::vector<std::string> all;
    for (auto& left : values_in(store, list, size)) all.push_back(std::move(left.value()));
    return all;
  } catch (const PeerFailure&) {
    throw;
  } catch (const std::exception& error) {
    throw StoreLost{first_line(error.what())};
  }
}

// One list that ranks append to and read whole: a look costs two calls whatever the number of ranks, so that many that
// fail at once do not keep the store busy until they take it for gone.
class StoreBulletin final : public Bulletin {
 public:
  StoreBulletin(const Rendezvous& rendezvous, int size, Whereabouts whereabouts)
      : store_(rendezvous.bulletin_store),
        holder_(rendezvous.holder),
        size_(size),
        whereabouts_(std::move(whereabouts)) {}

  void post(int rank, const std::string& text) override { append(*store_, key, to_entry(rank, text)); }
  std::vector<std::optional<std::string>> read() override {
    if (!store_->check({key})) return std::vector<std::optional<std::string>>(static_cast<std::size_t>(size_));
    return values_in(*store_, key, size_);
  }
  std::vector<int> ended() override { return whereabouts_.ended ? whereabouts_.ended() : std::vector<int>(); }
  bool answers() override { return !whereabouts_.store_answers || whereabouts_.store_answers(); }
  int holder() const override { return holder_; }

 private:
  static constexpr const char* key = "failed";

  c10::intrusive_ptr<c10d::Store> store_;
  int holder_;
  int size_;
  Whereabouts whereabouts_;
};

// A process that connects again may meet the store of its last connect while rank 0 is just giving that up: a store
// that was lost is looked for again as long as there is time. For the same reason the port may be held for a moment,
// also by a rank whose search for the store was given that very port as its own end.
Joined join_at_store(const Environment& environment, const std::string& value, std::chrono::milliseconds timeout) {
  // Jobs of one node do not touch the network.
  const auto secret = environment.num_nodes > 1 ? read_job_secret(&process_variable) : nullptr;
  if (environment.num_nodes > 1 && !secret) {
    Logger(environment.rank)
        .info("this job has no secret: whoever reaches " + where_store_is(environment) +
              " can join it (TUTTI_JOB_SECRET_FILE gives it one)");
  }
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    Rendezvous rendezvous;  // out here: it may have to outlive the exception
    try {
      rendezvous = open_rendezvous(environment, secret, std::max(left, std::chrono::milliseconds(1)));
      auto values = exchange_values(*rendezvous.store, "job", environment.rank, environment.world_size, value, timeout);
      return {std::move(rendezvous), std::move(values)};
    } catch (const Timeout&) {
      // The others read the marks: the store stays for a moment.
      if (serves_store(environment)) std::this_thread::sleep_for(linger);
      throw;
    } catch (const PortInUse& taken) {
      if (Clock::now() - begin > std::min<Clock::duration>(port_may_be_left, timeout)) {
        throw UsageError("rank 0 cannot serve the store: port " + std::to_string(environment.master_port) +
                         " is in use. Choose another MASTER_PORT, or end the job that holds it. (" + taken.cause + ")");
      }
      std::this_thread::sleep_for(between_attempts);
    } catch (const StoreLost& lost) {
      if (serves_store(environment) || Clock::now() + between_attempts > deadline) {
        throw Timeout("rank " + std::to_string(environment.rank) + " could not reach the store at " +
                          where_store_is(environment) + " within " + describe_duration(timeout) +
                          ". Check that rank 0 runs there, that MASTER_ADDR and MASTER_PORT are the same on all ranks, "
                          "and that no firewall is between. (" +
                          lost.cause + ")",
                      {0});
      }
      std::this_thread::sleep_for(between_attempts);
    }
  }
}

}  // namespace

Rendezvous rendezvous_of_group(const Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members) {
  const auto place = std::find(members.begin(), members.end(), rendezvous.holder);
  return {.store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous.store),
          .bulletin_store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous.bulletin_store),
          .holder = place == members.end() ? -1 : static_cast<int>(place - members.begin()),
          .secret = rendezvous.secret};
}

Joined join_job(const Environment& environment, const std::string& value, std::chrono::milliseconds timeout) {
  if (!environment.master_addr.starts_with(local_meeting)) return join_at_store(environment, value, timeout);
  const std::string job = environment.master_addr.substr(local_meeting.size());
  Environment found = environment;
  found.master_addr = "127.0.0.1";
  if (environment.rank != 0) {
    const auto deadline = Clock::now() + timeout;
    found.master_port = ask_for_port(job, environment.rank, timeout);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    return join_at_store(found, value, std::max(left, std::chrono::milliseconds(1)));
  }
  const LoopbackSocket socket = listen_on_loopback();  // the store takes it over
  found.master_port = socket.port;
  found.master_listen_fd = socket.descriptor;
  const PortAnnouncement announcement(job, socket.port, environment.world_size);
  return join_at_store(found, value, timeout);
}

std::vector<std::string> exchange(const Rendezvous& rendezvous, const std::string& topic, int rank, int size,
                                  const std::string& value, std::chrono::milliseconds timeout,
                                  const std::function<bool()>& given_up) {
  try {
    return exchange_values(*rendezvous.store, topic, rank, size, value, timeout, given_up);
  } catch (const StoreLost& lost) {
    const std::vector<int> holders(rendezvous.holder < 0 ? 0U : 1U, rendezvous.holder);
    throw PeerFailure(
        "The store that all ranks meet at is gone: rank 0 or the launcher has ended. (" + lost.cause + ")", holders);
  }
}

void rest(const Rendezvous& rendezvous) {
  for (const auto& store : {rendezvous.store, rendezvous.bulletin_store}) {
    const auto prefix = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
    const auto below = prefix ? prefix->getUnderlyingNonPrefixStore() : store;
    if (const auto own = c10::dynamic_intrusive_pointer_cast<StoreOnDemand>(below)) own->hang_up(idle);
  }
}

void part(const Rendezvous& rendezvous, int rank, int size) noexcept {
  try {
    rendezvous.store->set("parts/" + std::to_string(rank), std::string("yes"));
    std::vector<std::string> keys;
    for (int other = 0; other < size; ++other) keys.push_back("parts/" + std::to_string(other));
    rendezvous.store->wait(keys, linger);
  } catch (const std::exception&) {
    // Whoever has not come by now, or has left already, waits for nobody.
  }
}

std::shared_ptr<Bulletin> make_store_bulletin(const Rendezvous& rendezvous, int size, Whereabouts whereabouts) {
  return std::make_shared<StoreBulletin>(rendezvous, size, std::move(whereabouts));
}

}  // namespace tutti::comm
