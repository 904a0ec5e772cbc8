#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "support/rank_program.h"
#include "support/ranks.h"

namespace tutti::test {
namespace {

constexpr const char* waiting_for_go = "waiting for go";

void require(bool condition, const char* what) {
  if (!condition) throw std::system_error(errno, std::generic_category(), what);
}

struct ReservedPort {
  int descriptor;
  int port;
};

// As the launcher does: no other process gets the port while the socket is open, and rank 0 can listen there.
ReservedPort reserve_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(descriptor >= 0, "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  require(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0, "bind");
  const int on = 1;
  require(::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "setsockopt");
  require(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  return {descriptor, ntohs(address.sin_port)};
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

}  // namespace

RankProcesses::RankProcesses(const RankProgram& program, int size, ProcessOptions options)
    : processes_(static_cast<std::size_t>(size)), deadline_(std::chrono::steady_clock::now() + options.deadline) {
  const auto [descriptor, port] = reserve_port();
  port_socket_ = descriptor;
  port_ = port;
  for (int rank = 0; rank < size; ++rank) {
    if (std::count(options.absent.begin(), options.absent.end(), rank) == 0) start(rank, size, program, options);
  }
}

void RankProcesses::start(int rank, int size, const RankProgram& program, const ProcessOptions& options) {
  const int per_node = size / options.num_nodes;
  std::map<std::string, std::string> variables = {
      {program_variable, program.name()},
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"LOCAL_RANK", std::to_string(rank % per_node)},
      {"LOCAL_WORLD_SIZE", std::to_string(per_node)},
      {"GROUP_RANK", std::to_string(rank / per_node)},
      {"GROUP_WORLD_SIZE", std::to_string(options.num_nodes)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port_)},
      {"OMP_NUM_THREADS", "1"},
      {"TUTTI_HEARTBEAT_TIMEOUT", "2"},
      {"TUTTI_DEADLOCK_TIMEOUT", "2"},
  };
  for (const auto& [name, value] : options.variables) variables[name] = value;

  std::array<int, 2> pipe{};
  require(::pipe2(pipe.data(), O_CLOEXEC) == 0, "pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, group_);

  auto entries = environment_with(variables);
  std::vector<char*> environment;
  for (auto& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  std::string binary = "/proc/self/exe";
  std::array<char*, 2> arguments = {binary.data(), nullptr};
  auto& process = processes_[static_cast<std::size_t>(rank)];
  const int failure =
      ::posix_spawn(&process.pid, binary.c_str(), &actions, &attributes, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(pipe[1]);
  process.output = pipe[0];
  if (failure != 0) throw std::system_error(failure, std::generic_category(), "posix_spawn");
  process.ended = false;
  if (group_ == 0) group_ = process.pid;
}

RankProcesses::~RankProcesses() {
  kill_all();
  for (auto& process : processes_) {
    if (!process.ended) reap(process);
  }
  ::close(port_socket_);
}

pid_t RankProcesses::pid(int rank) const {
  return processes_.at(static_cast<std::size_t>(rank)).pid;
}

void RankProcesses::send_signal(int rank, int signal) const {
  ::kill(pid(rank), signal);
}

void RankProcesses::go() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].pid > 0) wait_for_output(static_cast<int>(rank), waiting_for_go);
  }
  for (const auto& process : processes_) {
    if (process.pid > 0 && !process.ended) ::kill(process.pid, SIGUSR1);
  }
}

Environment on_nodes(int num_nodes) {
  auto environment = read_environment();
  environment.num_nodes = num_nodes;
  environment.local_world_size = environment.world_size / num_nodes;
  environment.node_rank = environment.rank / environment.local_world_size;
  environment.local_rank = environment.rank % environment.local_world_size;
  return environment;
}

void wait_for_go() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::puts(waiting_for_go);
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&signals, &signal);
}

void RankProcesses::wait_until_stopped(int rank) const {
  siginfo_t what{};
  require(::waitid(P_PID, static_cast<id_t>(pid(rank)), &what, WSTOPPED | WEXITED | WNOWAIT) == 0, "waitid");
}

bool RankProcesses::wait_for_output(int rank, const std::string& text) {
  auto& process = processes_.at(static_cast<std::size_t>(rank));
  for (;;) {
    if (process.result.output.find(text) != std::string::npos) return true;
    if (process.ended) return false;
    collect();
  }
}

std::vector<RankResult> RankProcesses::wait() {
  while (!all_ended()) collect();
  std::vector<RankResult> results;
  for (const auto& process : processes_) results.push_back(process.result);
  return results;
}

void RankProcesses::collect() {
  const auto left = deadline_ - std::chrono::steady_clock::now();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  if (milliseconds <= 0) {
    for (auto& process : processes_) process.result.timed_out = process.result.timed_out || !process.ended;
    kill_all();
  }
  std::vector<pollfd> descriptors;
  std::vector<Process*> readers;
  for (auto& process : processes_) {
    if (process.ended) continue;
    descriptors.push_back({process.output, POLLIN, 0});
    readers.push_back(&process);
  }
  ::poll(descriptors.data(), descriptors.size(), static_cast<int>(std::max<long>(milliseconds, 0)));
  for (std::size_t i = 0; i < readers.size(); ++i) {
    if (descriptors[i].revents == 0) continue;
    std::array<char, 4096> buffer{};
    const auto count = ::read(readers[i]->output, buffer.data(), buffer.size());
    if (count > 0) {
      readers[i]->result.output.append(buffer.data(), static_cast<std::size_t>(count));
    } else {
      reap(*readers[i]);
    }
  }
}

void RankProcesses::reap(Process& process) {
  int status = 0;
  ::waitpid(process.pid, &status, 0);
  ::close(process.output);
  process.ended = true;
  if (WIFEXITED(status)) process.result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) process.result.signal = WTERMSIG(status);
}

void RankProcesses::kill_all() {
  if (!all_ended()) ::kill(-group_, SIGKILL);
}

bool RankProcesses::all_ended() const {
  return std::all_of(processes_.begin(), processes_.end(), [](const Process& process) { return process.ended; });
}

std::vector<RankResult> run_processes(const RankProgram& program, int size, ProcessOptions options) {
  return RankProcesses(program, size, std::move(options)).wait();
}

void expect_success(const std::vector<RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const auto& result = results[rank];
    EXPECT_TRUE(result.exit_code == 0 && !result.timed_out)
        << "rank " << rank << ": exit code " << result.exit_code << ", signal " << result.signal
        << (result.timed_out ? " (killed at the deadline)" : "") << ", output:\n"
        << result.output;
  }
}

}  // namespace tutti::test
