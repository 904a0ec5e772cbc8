#include "coordinator/idle_job.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "coordinator/client.h"
#include "coordinator/server.h"
#include "core/socket.h"

namespace tutti::bench {
namespace {

constexpr int max_ranks = 1024;
using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

bool wait_for(std::chrono::seconds timeout, const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + timeout;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

JobSecretPtr secret_of(const IdleJobOptions& options) {
  return options.has_secret ? std::make_shared<const JobSecret>("the secret of a benchmark", "tutti bench") : nullptr;
}

template <typename Body>
pid_t forked(const Body& body) {
  const pid_t process = ::fork();
  if (process < 0) throw std::runtime_error("cannot start a process");
  if (process > 0) return process;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    body();
  } catch (const std::exception&) {
    ::_exit(1);
  }
  for (;;) ::pause();
}

double cpu_of(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

}  // namespace

struct IdleJob::Board {
  std::atomic<int> port = 0;
  std::array<IdleRank, max_ranks> ranks{};
};

IdleJob::IdleJob(const IdleJobOptions& options) : ranks_(options.ranks) {
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  board_ = new (memory) Board;
  const std::chrono::milliseconds timeout(options.heartbeat_timeout_ms);
  coordinator_ = forked([&] {
    coordinator::ServerOptions server;
    server.listening = listen_tcp(loopback_host).socket;
    server.secret = secret_of(options);
    server.world_size = ranks_;
    server.timeouts.heartbeat = timeout;
    auto* const running = new coordinator::Server(std::move(server));  // until the process is killed
    board_->port = running->port();
  });
  wait_for(std::chrono::seconds(10), [&] { return board_->port != 0; });
  for (int rank = 0; rank < ranks_; ++rank) {
    processes_.push_back(forked([&, rank] {
      auto& noted = board_->ranks.at(static_cast<std::size_t>(rank));
      coordinator::ClientOptions client;
      client.port = static_cast<std::uint16_t>(board_->port.load());
      client.secret = secret_of(options);
      client.member = {.rank = rank, .world_size = ranks_, .node = "node", .version = "benchmark"};
      client.connect_timeout = std::chrono::seconds(60);
      client.timeouts.heartbeat = timeout;
      coordinator::ClientEvents events;
      events.on_failed = [&noted](const coordinator::FailedRanks& failed) {
        if (failed.is_warning) return;
        noted.told_at = nanoseconds();
        noted.failed_rank = failed.ranks.size() == 1 ? failed.ranks.front() : -1;
        ++noted.events;
      };
      new coordinator::Client(client, std::move(events));  // until the process is killed
      noted.is_connected = true;
    }));
  }
  const bool all = wait_for(std::chrono::seconds(60), [&] {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!board_->ranks.at(static_cast<std::size_t>(rank)).is_connected) return false;
    }
    return true;
  });
  if (!all) throw std::runtime_error("not all ranks have connected within 60 s");
}

IdleJob::~IdleJob() {
  for (const pid_t process : processes_) ::kill(process, SIGKILL);
  ::kill(coordinator_, SIGKILL);
  for (const pid_t process : processes_) ::waitpid(process, nullptr, 0);
  ::waitpid(coordinator_, nullptr, 0);
  ::munmap(board_, sizeof(Board));
}

std::vector<double> IdleJob::fail(int failed_rank, int signal) {
  const auto begin = nanoseconds();
  ::kill(processes_.at(static_cast<std::size_t>(failed_rank)), signal);
  std::vector<double> told;
  const auto is_told = [&](int rank) { return board_->ranks.at(static_cast<std::size_t>(rank)).events > 0; };
  wait_for(std::chrono::seconds(10), [&] {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank != failed_rank && !is_told(rank)) return false;
    }
    return true;
  });
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto& noted = board_->ranks.at(static_cast<std::size_t>(rank));
    if (rank == failed_rank || noted.events != 1 || noted.failed_rank != failed_rank) continue;
    told.push_back(static_cast<double>(noted.told_at - begin) / 1e6);
  }
  return told;
}

double IdleJob::cpu_of_ranks() const {
  double sum = 0;
  for (const pid_t process : processes_) sum += cpu_of(process);
  return sum;
}

double IdleJob::cpu_of_coordinator() const {
  return cpu_of(coordinator_);
}

}  // namespace tutti::bench
