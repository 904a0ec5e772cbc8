#include "comm/rendezvous/rendezvous.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/backend/current_operation.h"
#include "comm/backend/topology.h"
#include "comm/rendezvous/local_address.h"
#include "core/describe.h"
#include "core/in_this_process.h"
#include "core/job_ranks.h"
#include "core/launchers.h"
#include "core/socket.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

/// A rank that joins logs for whom it waits after this time.
constexpr milliseconds absence_log_delay = std::chrono::seconds(10);
constexpr milliseconds reconnect_interval(100);
constexpr milliseconds outcome_timeout = std::chrono::seconds(2);
constexpr milliseconds port_release_timeout = std::chrono::seconds(3);

milliseconds time_until(Deadline end) {
  return std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), milliseconds(1));
}

Rendezvous rendezvous_at(std::shared_ptr<JobConnection> job, const std::string& group,
                         const CoordinatorOptions& options) {
  return {.job = std::move(job), .group = group, .members = all_ranks(options.world_size)};
}

std::shared_ptr<JobConnection> connect_to(CoordinatorPlace place, const coordinator::Member& member,
                                          const CoordinatorOptions& options, milliseconds timeout) {
  // A launcher may be stopped for any time: it computes nothing that ranks wait for.
  const auto response_timeout = place.owner < 0 ? milliseconds(0) : options.timeouts.heartbeat;
  const coordinator::ClientOptions client_options{.host = place.host,
                                                  .port = place.port,
                                                  .secret = place.secret,
                                                  .member = member,
                                                  .connect_timeout = timeout,
                                                  .timeouts = options.timeouts,
                                                  .response_timeout = response_timeout};
  return make_shared_in_this_process<JobConnection>(std::move(place.server), client_options, place.owner);
}

std::string describe_address(const Environment& environment) {
  if (environment.master_addr.starts_with(local_coordinator_scheme)) return environment.master_addr;
  const bool one_node = environment.num_nodes == 1 && !environment.agent_store;
  const std::string host = one_node ? std::string(loopback_host) : environment.master_addr;
  if (!one_node) return format_address(host, environment.master_port);
  const bool is_default = environment.launcher == "torchrun" && !process_variable("LOCAL_WORLD_SIZE");
  return format_address(host, environment.master_port) + " (all ranks are on one node" +
         (is_default ? ": LOCAL_WORLD_SIZE and LOCAL_RANK are not set)" : ")");
}

// Not empty for a list that is not: an empty value means that no rank is absent.
std::string encode_absent(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += std::to_string(rank) + " ";
  return text;
}

/// The wait of a rank for the other ranks of a group.
struct GroupWait {
  int rank;
  std::vector<int> members;  ///< the numbers in the job, by rank of the group
  milliseconds timeout;
  JobRanks job_ranks{members};
  std::string call{};  ///< "subgroup 'pair'": the call that makes the group; empty while the ranks of a job connect
};

/// The call of this thread, without its number, which the ranks of a subgroup do not share.
std::string current_call() {
  const Operation* const operation = CurrentOperation::get();
  if (operation == nullptr) return "";
  return operation->op_name + (operation->name.empty() ? "" : " '" + operation->name + "'");
}

[[noreturn]] void throw_absent(const std::string& outcome, const GroupWait& wait) {
  std::istringstream words(outcome);
  const std::vector<int> absent{std::istream_iterator<int>(words), {}};
  const std::string call = wait.call.empty() ? "" : wait.call + ": ";
  if (std::ranges::find(absent, wait.rank) != absent.end()) {
    throw TimeoutError(
        call + "the other ranks timed out waiting for this rank (" + std::to_string(wait.job_ranks.of(wait.rank)) + ")",
        {wait.rank});
  }
  const std::string ranks = wait.job_ranks.describe(absent);
  const auto size = static_cast<int>(wait.members.size());
  if (!wait.call.empty()) {
    throw TimeoutError(call + ranks + " did not join within " + describe_duration(wait.timeout) + " the group of " +
                           wait.job_ranks.describe(all_ranks(size)) + "; the other ranks are waiting.",
                       absent);
  }
  throw TimeoutError(ranks + " did not join within " + describe_duration(wait.timeout) +
                         "; the other ranks are waiting. Check that all " + std::to_string(size) +
                         " ranks were started, each with a RANK of its own and the same MASTER_ADDR and MASTER_PORT.",
                     absent);
}

/// The lowest rank that has joined logs which ranks have not.
void log_absent(const std::vector<int>& absent, const GroupWait& wait) {
  for (int lower = 0; lower < wait.rank; ++lower) {
    if (std::ranges::find(absent, lower) == absent.end()) return;
  }
  const bool connects = wait.call.empty();
  Logger(wait.job_ranks.of(wait.rank))
      .warning((connects ? "connecting" : wait.call) + " has waited for " + describe_duration(absence_log_delay) +
               " for " + wait.job_ranks.describe(absent) + (absent.size() == 1 ? ", which has" : ", which have") +
               " not joined. It fails after " + describe_duration(wait.timeout) +
               (connects ? " (connect_timeout)." : "."));
}

// The values of all ranks of a group, until `timeout` after `begin`. The first rank that times out stores the absent
// ranks, so that all ranks name the same ones: also those that time out later, and those that find a rank gone for this
// reason.
std::vector<std::string> gather(const Rendezvous& rendezvous, const std::string& topic, int rank,
                                const std::string& value, Deadline begin, milliseconds timeout) {
  auto& client = *rendezvous.job->client();
  const std::string name = rendezvous.group + "/" + topic;
  const std::string outcome_key = name + "/outcome";
  const auto size = static_cast<int>(rendezvous.members.size());
  const GroupWait wait{.rank = rank, .members = rendezvous.members, .timeout = timeout, .call = current_call()};
  bool is_logged = timeout <= absence_log_delay || SuppressSlowWarning::is_active();
  const auto group_ranks = [&](const std::vector<int>& ranks) {
    std::vector<int> found;
    for (int member = 0; member < size; ++member) {
      if (std::ranges::find(ranks, rendezvous.members[static_cast<std::size_t>(member)]) != ranks.end())
        found.push_back(member);
    }
    return found;
  };
  for (;;) {
    // A coordinator that is silent at the end of the first slice has as long as the whole wait.
    const auto slice = is_logged ? timeout : absence_log_delay;
    try {
      return client.all_gather(name, rendezvous.members, value, time_until(begin + slice), timeout - slice);
    } catch (const TimeoutError& late) {
      const auto absent = group_ranks(late.ranks());
      if (absent.empty()) throw;  // the coordinator does not answer
      if (Clock::now() >= begin + timeout) {
        throw_absent(client.compare_set(outcome_key, "", encode_absent(absent), outcome_timeout), wait);
      }
      if (!std::exchange(is_logged, is_logged || Clock::now() >= begin + absence_log_delay) && is_logged) {
        log_absent(absent, wait);
      }
    } catch (const PeerError& lost) {
      const auto& events = *rendezvous.job->events();
      if (events.lost_reason()) throw PeerError(lost.what(), group_ranks({events.owner()}));
      if (client.check({outcome_key}, outcome_timeout)) {
        throw_absent(client.get({outcome_key}, outcome_timeout).front(), wait);
      }
      const auto failed = group_ranks(lost.ranks());
      if (failed.empty()) throw;  // the connection has ended
      throw PeerError(wait.job_ranks.describe(failed) + " failed or left while the ranks connected", failed);
    }
  }
}

void log_open(const Environment& environment) {
  static std::atomic_flag is_logged;  // rank 0 opens the rendezvous again while another process holds its port
  const bool may_be_open = environment.num_nodes > 1 && !environment.agent_store;
  if (!may_be_open || environment.rank != 0 || is_logged.test_and_set()) return;
  Logger(0).warning("this job has no secret: any process that reaches " + describe_address(environment) +
                    " can join it (TUTTI_JOB_SECRET_FILE sets one)");
}

// One connection for all connects of this process to a job. A restarted job may find the entries of its earlier
// attempts, and a process may connect more than once: each attempt and each connect has a group name of its own.
Rendezvous open_rendezvous(const Environment& environment, const JobSecretPtr& secret,
                           const CoordinatorOptions& options, milliseconds timeout) {
  const coordinator::Member member{.rank = environment.rank,
                                   .world_size = environment.world_size,
                                   .node = std::to_string(environment.node_rank),
                                   .version = TUTTI_VERSION,
                                   .restart = environment.restart_count,
                                   .job = environment.job};
  const std::string attempt = "tutti/" + std::to_string(environment.restart_count) + "/";
  const std::string name = environment.master_addr + " " + std::to_string(environment.master_port) + " " + attempt +
                           std::to_string(environment.rank);
  auto job = process_connection(name, [&] {
    if (!secret) log_open(environment);
    if (!environment.agent_store) {
      return connect_to(coordinator_of_job(environment, secret, options), member, options, timeout);
    }
    c10d::TCPStoreOptions agent_options;
    agent_options.port = environment.master_port;
    agent_options.waitWorkers = false;
    agent_options.timeout = timeout;
    c10d::TCPStore agent(environment.master_addr, agent_options);
    const std::string host = environment.num_nodes > 1 ? network_address(environment.master_addr) : loopback_host;
    const auto connects = agent.add(attempt + "connects/" + std::to_string(environment.rank), 1);
    return connect_to(coordinator_at_store(agent, attempt + "coordinator/" + std::to_string(connects), environment.rank,
                                           host, secret, options),
                      member, options, timeout);
  });
  // Not `timeout`: the coordinator may do later what it did not answer, so a rank adds once.
  const auto connects =
      job->client()->add(attempt + "connects/" + std::to_string(environment.rank), 1, options.connect_timeout);
  return rendezvous_at(std::move(job), attempt + std::to_string(connects), options);
}

[[noreturn]] void throw_unreachable(const Environment& environment, const std::string& cause, milliseconds timeout) {
  throw TimeoutError("rank " + std::to_string(environment.rank) + " could not reach the coordinator at " +
                         describe_address(environment) + " within " + describe_duration(timeout) +
                         ". Check that rank 0 runs there, that MASTER_ADDR and MASTER_PORT are the same on all ranks, "
                         "and that no firewall is between. (" +
                         first_line(cause) + ")",
                     {0});
}

void wait_for_rank_zero(c10d::Store& store, const std::string& key, milliseconds timeout) {
  try {
    store.wait({key}, timeout);
  } catch (const std::exception&) {
    if (store.check({key})) return;  // this throws what the store throws if it is lost
    throw TimeoutError("rank 0 did not join within " + describe_duration(timeout) +
                           "; the other ranks are waiting. Check that it was started and uses the same store.",
                       {0});
  }
}

/// Whether the key is there within 50 ms.
bool appears_soon(c10d::Store& store, const std::string& key) {
  constexpr int tries = 10;
  for (int i = 0; i < tries; ++i) {
    if (store.check({key})) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

[[noreturn]] void throw_port_in_use(const Environment& environment) {
  if (environment.master_addr.starts_with(local_coordinator_scheme)) {
    throw UsageError("rank 0 cannot run the coordinator of the job " + environment.master_addr +
                     ": another job of that name runs on this node. Start programs of one job one after the other, or "
                     "set MASTER_ADDR and MASTER_PORT for each.");
  }
  throw UsageError("rank 0 cannot run the coordinator: port " + std::to_string(environment.master_port) +
                   " is in use. Choose another MASTER_PORT, or end the job that holds it. Of several launchers, only "
                   "one has node rank 0.");
}

}  // namespace

Rendezvous rendezvous_of_group(const Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members) {
  Rendezvous group{.job = rendezvous.job, .group = rendezvous.group + "/" + name};
  for (const int member : members) group.members.push_back(rendezvous.members.at(static_cast<std::size_t>(member)));
  return group;
}

// The coordinator of an earlier job may be closing on the same port. So a rank that loses it while it joins tries again
// until the timeout, and rank 0 waits for the port.
JobRendezvous join_job(const Environment& environment, const JobSecretPtr& secret, const std::string& value,
                       const CoordinatorOptions& options) {
  const auto timeout = options.connect_timeout;
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  bool is_logged = environment.rank == 0 || environment.agent_store;
  std::string cause;
  for (;;) {
    Rendezvous rendezvous;
    const auto end = is_logged ? deadline : std::min(deadline, begin + absence_log_delay);
    try {
      rendezvous = open_rendezvous(environment, secret, options, time_until(end));
      auto values = gather(rendezvous, "job", environment.rank, value, begin, timeout);
      return {std::move(rendezvous), std::move(values)};
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::address_in_use) throw_unreachable(environment, error.what(), timeout);
      if (Clock::now() - begin > std::min(port_release_timeout, timeout)) throw_port_in_use(environment);
    } catch (const TimeoutError& late) {
      if (rendezvous.job) {  // the named ranks did not join
        const bool is_misplaced =
            environment.rank == 0 && environment.num_nodes > 1 && is_another_machine(environment.master_addr);
        if (!is_misplaced) throw;
        throw TimeoutError(std::string(late.what()) + " MASTER_ADDR " + environment.master_addr +
                               " is no address of this machine, on which rank 0 runs: check --node-rank, or RANK.",
                           late.ranks());
      }
      if (Clock::now() + reconnect_interval > deadline) throw_unreachable(environment, late.what(), timeout);
      cause = late.what();
    } catch (const PeerError& lost) {
      // Another try at an agent's store would wait for a coordinator that rank 0 does not start.
      const bool is_lost = !environment.agent_store && (!rendezvous.job || rendezvous.job->events()->lost_reason());
      if (!is_lost || Clock::now() + reconnect_interval > deadline) throw;
      cause = lost.what();
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& error) {
      if (environment.rank == 0 || Clock::now() + reconnect_interval > deadline) {
        throw_unreachable(environment, error.what(), timeout);
      }
      cause = error.what();
    }
    if (!is_logged && Clock::now() + reconnect_interval > begin + absence_log_delay) {
      is_logged = true;
      Logger(environment.rank)
          .warning("this rank has tried for " + describe_duration(absence_log_delay) + " to reach the coordinator at " +
                   describe_address(environment) + ": rank 0 has not joined, or the address differs. It fails after " +
                   describe_duration(timeout) + " (connect_timeout). (" + first_line(cause) + ")");
    }
    std::this_thread::sleep_for(reconnect_interval);
  }
}

Rendezvous join_at_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::string& host,
                         const std::string& node, const JobSecretPtr& secret, const CoordinatorOptions& options) {
  const auto connects = store->add("tutti/connects/" + std::to_string(rank), 1);
  const std::string group = "tutti/" + std::to_string(connects);
  const std::string key = group + "/coordinator";
  // A request that waits occupies a connection. To make another one can take seconds, because PyTorch's server looks up
  // the name of its peer.
  if (rank != 0 && !appears_soon(*store, key)) wait_for_rank_zero(*store->clone(), key, options.connect_timeout);
  auto place = coordinator_at_store(*store, key, rank, host, secret, options);
  return join_at_place(std::move(place), rank, group, node, options);
}

Rendezvous join_at_place(CoordinatorPlace place, int rank, const std::string& group, const std::string& node,
                         const CoordinatorOptions& options) {
  const coordinator::Member member{
      .rank = rank, .world_size = options.world_size, .node = node, .version = TUTTI_VERSION};
  auto job = connect_to(std::move(place), member, options, options.connect_timeout);
  return rendezvous_at(std::move(job), group, options);
}

std::vector<std::string> coordinator_all_gather(const Rendezvous& rendezvous, const std::string& topic, int rank,
                                                const std::string& value, milliseconds timeout) {
  return gather(rendezvous, topic, rank, value, Clock::now(), timeout);
}

}  // namespace tutti::comm
