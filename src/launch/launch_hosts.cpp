#include "tutti/detail/launch/launch_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/job_secret.h"
#include "core/launchers.h"
#include "launch/launch_report.h"
#include "launch/output.h"
#include "launch/program.h"
#include "launch/rank_process.h"
#include "launch/rank_variables.h"
#include "launch/remote_script.h"
#include "launch/signal_events.h"
#include "launch/supervisor.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// The exit code of ssh if ssh itself failed, and not the remote command.
constexpr int ssh_failed = 255;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.empty()) throw UsageError("--ssh is empty: give the command that reaches a host");
  return words;
}

/// A pipe that holds `content`. Its write end stays open; when it closes, the host ends its ranks.
std::pair<FileDescriptor, FileDescriptor> filled_pipe(const std::string& content) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  std::pair pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  // The whole content must fit, because no process reads it before ssh has reached the host.
  if (content.size() > 4096 && ::fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(content.size())) < 0) {
    throw UsageError("the environment and the command take " + std::to_string(content.size()) +
                     " bytes, more than a pipe may hold (/proc/sys/fs/pipe-max-size): unset large variables");
  }
  if (::write(ends[1], content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    throw std::system_error(errno, std::generic_category(), "write");
  }
  return pipe;
}

/// Sets the job's secret as text: the other hosts need not have the user's secret file. Creates one if the user has
/// none.
void add_secret(Variables& variables) {
  auto secret = read_job_secret(&process_variable);
  if (!secret) secret = make_job_secret();
  variables.erase(secret_file_variable);
  variables[secret_variable] = secret->text();
}

class HostJob {
 public:
  HostJob(const HostLaunchOptions& options, LaunchOptions job, Sink& out, Sink& err)
      : hosts_(options.hosts),
        job_(std::move(job)),
        master_port_(job_.master_port),
        out_(out),
        err_(err),
        variables_(current_variables()) {
    auto words = words_of(options.ssh);
    command_.guard = find_rank_guard();
    // ssh itself does not need a secret that is created here.
    command_.environment = environment_block(variables_);
    if (hosts_.size() > 1) add_secret(variables_);
    tutti_ = std::filesystem::absolute(command_.guard).parent_path() / "tutti";
    command_.program = find_program(words.front());
    command_.signal_mask = signals_.mask_before();
    ssh_arguments_.assign(words.begin() + 1, words.end());
  }

  int run() {
    job_.restart_count = 0;
    for (;; ++*job_.restart_count) {
      const auto exit_code = run_once();
      if (exit_code) return *exit_code;
    }
  }

 private:
  /// The exit code of the job, or nothing if another attempt follows.
  std::optional<int> run_once() {
    processes_.clear();
    inputs_.clear();
    named_by_.clear();
    job_.master_port = master_port_;
    job_.coordinator_port.reset();
    start(0);
    if (!job_.master_port) wait_for_port();
    if (job_.master_port) {
      for (std::size_t node = 1; node < hosts_.size() && !signals_.has_pending(); ++node) start(node);
    }
    // ssh passes no signal on: it would end, and the launcher on the host would end its ranks unobserved. That launcher
    // takes the end of its input as SIGTERM, and ssh ends when it has ended.
    const auto end = [this](const RankProcess& host, int signal) {
      signal == SIGKILL ? host.signal_group(signal) : inputs_.at(static_cast<std::size_t>(host.rank())).reset();
    };
    const ShutdownPolicy policy(job_.grace, ShutdownPolicy::Ends::launchers);
    const auto result = Supervisor(processes_, signals_, {&out_, &err_}, policy, {.end = end}).run();
    const JobFailure failure = find_failure(result, job_.ranks_per_node, {});
    const bool restarts = *job_.restart_count < job_.max_restarts && may_restart(result, failure, signals_);
    err_.append(describe(result, failure) + (restarts ? describe_restart() : ""));
    if (restarts) return std::nullopt;
    if (result.interrupted_by && failure.exit_code == 128 + SIGTERM) return 128 + *result.interrupted_by;  // see `end`
    if (failure.first != nullptr) return failure.exit_code;
    return processes_.size() == hosts_.size() ? 0 : 128 + result.interrupted_by.value_or(SIGTERM);
  }

  void start(std::size_t node) {
    const auto& host = hosts_[node].host;
    auto [read_end, write_end] = filled_pipe(remote_script(job_, static_cast<int>(node), tutti_.string(),
                                                           std::filesystem::current_path().string(), variables_));
    command_.arguments = ssh_arguments_;
    command_.arguments.insert(command_.arguments.end(), {host, "/bin/sh"});
    command_.stdin_fd = read_end.get();
    RankOutput output("[" + host + "] ", [this, node](const std::string& line) {
      note_named_host(node, line);
      const auto ports = announced_ports(line);
      if (ports && !job_.master_port) {
        job_.master_port = ports->master;
        job_.coordinator_port = ports->coordinator;
      }
      return ports.has_value();
    });
    processes_.emplace_back(static_cast<int>(node), command_, std::move(output), out_, err_);
    inputs_.push_back(std::move(write_end));
  }

  /// The launcher of a host says that the error of its rank names a rank of another host.
  void note_named_host(std::size_t node, const std::string& line) {
    const auto found = line.starts_with("tutti: ") ? line.find(names_elsewhere) : std::string::npos;
    if (found == std::string::npos) return;
    const auto digits = line.find_first_of("0123456789", found);
    const auto rank = digits == std::string::npos ? -1 : std::atoi(line.c_str() + digits);
    const auto of = static_cast<std::size_t>(rank / job_.ranks_per_node);
    if (rank >= 0 && of < hosts_.size()) named_by_[node] = {.rank = rank, .node = of};
  }

  /// Waits until the first host has announced its port or has exited, or a signal has arrived. The supervisor handles
  /// the last two.
  void wait_for_port() {
    auto& first = processes_.front();
    auto& streams = first.output().streams();
    while (!job_.master_port) {
      std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}, {first.exit_fd(), POLLIN, 0}};
      for (auto& stream : streams) fds.push_back({stream.pipe.get(), POLLIN, 0});  // a closed one is left out by poll
      if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "poll");
      }
      for (auto& stream : streams) first.output().read_piece(stream);
      out_.flush();
      err_.flush();
      if (fds[0].revents != 0 || fds[1].revents != 0) return;
    }
  }

  std::string describe(const Supervisor::Result& result, const JobFailure& failure) const {
    if (result.interrupted_by) {
      return describe_stop(*result.interrupted_by) + '\n';
    }
    if (failure.first == nullptr) return "";
    const auto& status = *failure.first->exit_status();
    const auto node = static_cast<std::size_t>(failure.first->rank());
    const auto named = named_by_.find(node);
    std::string text = "tutti: host " + hosts_[node].host;
    if (named != named_by_.end()) {
      return text + " failed: " + status.describe() + "; its ranks name rank " + std::to_string(named->second.rank) +
             ", which is on host " + hosts_[named->second.node].host + '\n';
    }
    text += " failed first: " + status.describe();
    if (status.code == ssh_failed) text += " (ssh could not reach it, or was cut off)";
    return text + '\n';
  }

  std::string describe_restart() const {
    return "tutti: all ranks start again, restart " + std::to_string(*job_.restart_count + 1) + " of " +
           std::to_string(job_.max_restarts) + '\n';
  }

  const std::vector<HostSlots>& hosts_;
  LaunchOptions job_;
  const std::optional<std::uint16_t> master_port_;  ///< the user's. Unset: each attempt has a free one
  Sink& out_;
  Sink& err_;
  SignalEvents signals_;
  Variables variables_;
  RankCommand command_;
  std::filesystem::path tutti_;  ///< the executable that hosts run
  std::vector<std::string> ssh_arguments_;
  std::vector<FileDescriptor> inputs_;
  struct NamedRank {
    int rank;
    std::size_t node;
  };
  std::map<std::size_t, NamedRank> named_by_;  ///< the rank of another host that the report of a node names
  std::deque<RankProcess> processes_;
};

LaunchOptions job_of(const HostLaunchOptions& options) {
  auto job = options.job;
  if (options.hosts.empty()) throw UsageError("the list of hosts is empty: name at least one host");
  if (job.command.empty()) throw UsageError("no program to start: give one after --");
  if (job.max_restarts < 0) throw UsageError("--max-restarts must not be negative");
  if (job.grace && job.grace->count() < 0) throw UsageError("--grace must not be negative");
  job.num_nodes = static_cast<int>(options.hosts.size());
  job.node_rank = 0;
  job.ranks_per_node = options.hosts.front().slots;
  const bool equal = std::all_of(options.hosts.begin(), options.hosts.end(),
                                 [&](const auto& host) { return host.slots == job.ranks_per_node; });
  if (!equal || job.ranks_per_node < 1) throw UsageError("all hosts need the same number of slots, at least 1");
  if (job.ranks_per_node > max_ranks_per_node) {
    throw UsageError(std::to_string(job.ranks_per_node) + " slots: a host runs at most " +
                     std::to_string(max_ranks_per_node) + " ranks");
  }
  // In user@host, the user is for ssh only.
  const auto& first = options.hosts.front().host;
  if (job.master_addr.empty()) job.master_addr = first.substr(first.find('@') + 1);
  return job;
}

}  // namespace

int launch_on_hosts(const HostLaunchOptions& options) {
  auto job = job_of(options);
  require_descriptors(std::to_string(options.hosts.size()) + " hosts", static_cast<int>(options.hosts.size()));
  Sink out(STDOUT_FILENO);
  Sink err(STDERR_FILENO);
  return HostJob(options, std::move(job), out, err).run();
}

}  // namespace tutti
