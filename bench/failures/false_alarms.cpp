#include "failures/false_alarms.h"

#include <signal.h>
#include <tutti/comm/communicator.h>
#include <tutti/core/error.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "command/launched.h"
#include "failures/heartbeat_cpu.h"
#include "failures/work.h"
#include "report/machine.h"
#include "report/spread.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int steps_between_checks = 20;

void compute_for(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

/// Stops this process for 0.8 s, as Ctrl+Z does. That is shorter than the heartbeat timeout, unless a busy machine
/// sends the SIGCONT late. Returns the duration of the stop.
std::chrono::duration<double> stop_this_process() {
  const auto wake = "(sleep 0.8; kill -CONT " + std::to_string(::getpid()) + ") &";
  if (std::system(wake.c_str()) != 0) throw std::runtime_error("cannot start a shell for the SIGCONT");
  const auto begin = Clock::now();
  ::raise(SIGSTOP);
  return Clock::now() - begin;
}

/// Delays and stops of a rank that has not failed.
class Disturbances {
 public:
  explicit Disturbances(int rank) : random_(static_cast<unsigned>(rank)) {}

  void maybe() {
    const int drawn = std::uniform_int_distribution(1, 2000)(random_);
    if (drawn <= 4) {
      longest_stop = std::max(longest_stop, stop_this_process().count());
      ++stops;
    } else if (drawn <= 12) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ++late;
    } else if (drawn == 13) {
      compute_for(std::chrono::seconds(15));
      ++late;
    }
  }

  int stops = 0;
  double longest_stop = 0;  // in seconds
  int late = 0;

 private:
  std::mt19937 random_;
};

struct Counts {
  std::int64_t steps = 0;  // of rank 0
  std::int64_t stops = 0;
  double longest_stop = 0;
  std::int64_t late = 0;
  CpuTime cpu{};
  int alarms = 0;
  std::string first;  // message of the first alarm
};

Counts read_counts(const std::string& file) {
  Counts counts;
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    std::int64_t steps = 0;
    std::int64_t stops = 0;
    double longest_stop = 0;
    std::int64_t late = 0;
    CpuTime cpu;
    if (word == "alarm") {
      std::string text;
      std::getline(in, text);
      if (counts.alarms++ == 0) counts.first = text;
    } else if (in >> steps >> stops >> longest_stop >> late >> cpu.heartbeats >> cpu.all) {
      if (word == "0") counts.steps = steps;
      counts.stops += stops;
      counts.longest_stop = std::max(counts.longest_stop, longest_stop);
      counts.late += late;
      counts.cpu.heartbeats += cpu.heartbeats;
      counts.cpu.all += cpu.all;
    }
  }
  return counts;
}

/// Empty for a job that an alarm ended: its ranks recorded no CPU times.
std::string share_of_cpu(const CpuTime& cpu) {
  return cpu.all > 0 ? number(100 * cpu.heartbeats / cpu.all, 3) + " %" : "";
}

void append(const std::string& file, const std::string& line) {
  std::ofstream out(file, std::ios::app);
  if (!(out << line + "\n" << std::flush)) throw std::runtime_error("cannot write to " + file);
}

}  // namespace

int run_healthy_rank(const FailuresOptions& options, const Environment& environment) {
  std::atomic<bool> ended = false;
  const std::jthread busy_thread([&] {
    while (!ended) compute_for(std::chrono::milliseconds(1));
  });
  Disturbances disturbances(environment.rank);
  std::int64_t steps = 0;
  CpuTime cpu;
  int code = 0;
  try {
    const auto communicator = Communicator::connect(environment);
    const auto step = work_of(options.during.front(), communicator);
    const auto end = Clock::now() + std::chrono::duration<double, std::ratio<60>>(options.false_alarm_minutes);
    const CpuTime before = cpu_time();
    for (bool more = true; more; more = communicator.broadcast_object(Clock::now() < end ? "more" : "") == "more") {
      for (int i = 0; i < steps_between_checks; ++i, ++steps) {
        disturbances.maybe();
        step();
      }
    }
    const CpuTime after = cpu_time();
    cpu = {.heartbeats = after.heartbeats - before.heartbeats, .all = after.all - before.all};
  } catch (const std::exception& error) {
    append(options.results, std::string("alarm ") + error.what());
    code = 1;
  }
  ended = true;
  append(options.results, std::to_string(environment.rank) + " " + std::to_string(steps) + " " +
                              std::to_string(disturbances.stops) + " " + number(disturbances.longest_stop, 3) + " " +
                              std::to_string(disturbances.late) + " " + number(cpu.heartbeats, 6) + " " +
                              number(cpu.all, 6));
  return code;
}

int count_false_alarms(const FailuresOptions& options) {
  const Machine machine = describe_machine();
  const Place place{.ranks = options.ranks, .nodes = options.nodes};
  std::cout << "Ranks that keep all cores busy, are late or stopped for 0.8 s at random; no rank fails.\n\n"
            << "| during | ranks | nodes | minutes | steps | stops | longest, s | late | false alarms | CPU for "
               "heartbeats |\n|---|---|---|---|---|---|---|---|---|---|\n";
  int alarms = 0;
  for (const std::string& during : options.during) {
    const AnonymousFile file;
    const auto command =
        launched(place, {own_program(), "failures", "--false-alarms", std::to_string(options.false_alarm_minutes),
                         "--during", during, "--results", file.path()});
    const int code = run_program(command, variables_of(place));
    if (code == nodes_impossible) break;
    const Counts counts = read_counts(file.path());
    alarms += std::max(counts.alarms, code == 0 ? 0 : 1);
    std::cout << "| " << during << " | " << options.ranks << " | " << options.nodes << " | "
              << number(options.false_alarm_minutes, 1) << " | " << counts.steps << " | " << counts.stops << " | "
              << number(counts.longest_stop, 2) << " | " << counts.late << " | " << counts.alarms << " | "
              << share_of_cpu(counts.cpu) << " |" << std::endl;
    if (counts.alarms > 0) std::cerr << "first alarm:" << counts.first << '\n';
  }
  std::cout
      << "\n- stops: by SIGSTOP, for 0.8 s; a busy machine may end them late, and a rank has failed after 1.5 s\n"
         "- late: by 0.3 s, or 15 s of computing\n"
         "- heartbeats: share of the threads that send and check them, and of the thread that serves the store, in the "
         "CPU time of all ranks\n- no timeout and no environment variable is set\n- "
      << describe(machine) << '\n';
  return alarms > 0 ? 1 : 0;
}

}  // namespace tutti::bench
