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

#include "command/child_process.h"
#include "command/launched.h"
#include "command/nameless_file.h"
#include "failures/signs_of_life.h"
#include "failures/work.h"
#include "report/machine.h"
#include "report/spread.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int rounds_between_questions = 20;

void compute_for(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

/// Stopped as by Ctrl+Z, for less than the second that is allowed, unless the machine is too busy to end it in time.
/// Returns for how long.
std::chrono::duration<double> be_stopped() {
  const auto wake = "(sleep 0.8; kill -CONT " + std::to_string(::getpid()) + ") &";
  if (std::system(wake.c_str()) != 0) throw std::runtime_error("cannot start a shell");
  const auto begin = Clock::now();
  ::raise(SIGSTOP);
  return Clock::now() - begin;
}

/// What happens to a rank that has not failed.
class Troubles {
 public:
  explicit Troubles(int rank) : random_(static_cast<unsigned>(rank)) {}

  void maybe() {
    const int drawn = std::uniform_int_distribution(1, 2000)(random_);
    if (drawn <= 4) {
      longest_stop = std::max(longest_stop, be_stopped().count());
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
  std::int64_t rounds = 0;  // of rank 0
  std::int64_t stops = 0;
  double longest_stop = 0;
  std::int64_t late = 0;
  CpuSpent cpu{};
  int alarms = 0;
  std::string first;  // alarm
};

Counts read_counts(const std::string& file) {
  Counts counts;
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    std::int64_t rounds = 0;
    std::int64_t stops = 0;
    double longest_stop = 0;
    std::int64_t late = 0;
    CpuSpent cpu;
    if (word == "alarm") {
      std::string text;
      std::getline(in, text);
      if (counts.alarms++ == 0) counts.first = text;
    } else if (in >> rounds >> stops >> longest_stop >> late >> cpu.watching >> cpu.all) {
      if (word == "0") counts.rounds = rounds;
      counts.stops += stops;
      counts.longest_stop = std::max(counts.longest_stop, longest_stop);
      counts.late += late;
      counts.cpu.watching += cpu.watching;
      counts.cpu.all += cpu.all;
    }
  }
  return counts;
}

/// A job that an alarm has ended has not said what it spent.
std::string share_of_cpu(const CpuSpent& cpu) {
  return cpu.all > 0 ? number(100 * cpu.watching / cpu.all, 3) + " %" : "";
}

void append(const std::string& file, const std::string& line) {
  std::ofstream out(file, std::ios::app);
  if (!(out << line + "\n" << std::flush)) throw std::runtime_error("cannot write to " + file);
}

}  // namespace

int run_healthy_rank(const FailuresOptions& options, const Environment& environment) {
  std::atomic<bool> ended = false;
  const std::jthread keeps_a_core_busy([&] {
    while (!ended) compute_for(std::chrono::milliseconds(1));
  });
  Troubles troubles(environment.rank);
  std::int64_t rounds = 0;
  CpuSpent cpu;
  int code = 0;
  try {
    const auto communicator = Communicator::connect(environment);
    const auto round = work_of(options.during.front(), communicator);
    const auto end = Clock::now() + std::chrono::duration<double, std::ratio<60>>(options.false_alarm_minutes);
    const CpuSpent before = cpu_spent();
    for (bool more = true; more; more = communicator.broadcast_object(Clock::now() < end ? "more" : "") == "more") {
      for (int i = 0; i < rounds_between_questions; ++i, ++rounds) {
        troubles.maybe();
        round();
      }
    }
    const CpuSpent after = cpu_spent();
    cpu = {.watching = after.watching - before.watching, .all = after.all - before.all};
  } catch (const std::exception& error) {
    append(options.results, std::string("alarm ") + error.what());
    code = 1;
  }
  ended = true;
  append(options.results, std::to_string(environment.rank) + " " + std::to_string(rounds) + " " +
                              std::to_string(troubles.stops) + " " + number(troubles.longest_stop, 3) + " " +
                              std::to_string(troubles.late) + " " + number(cpu.watching, 6) + " " + number(cpu.all, 6));
  return code;
}

int count_false_alarms(const FailuresOptions& options) {
  const Machine machine = describe_machine();
  const Place place{.ranks = options.ranks, .nodes = options.nodes};
  std::cout << "Ranks that keep all cores busy, come late and are stopped for 0.8 s now and then; none fails.\n\n"
            << "| during | ranks | nodes | minutes | rounds | stops | longest, s | late | false alarms | CPU for "
               "signs of life |\n|---|---|---|---|---|---|---|---|---|---|\n";
  int alarms = 0;
  for (const std::string& during : options.during) {
    const NamelessFile file;
    const auto command =
        launched(place, {own_program(), "failures", "--false-alarms", std::to_string(options.false_alarm_minutes),
                         "--during", during, "--results", file.path()});
    const int code = run_program(command, variables_of(place));
    if (code == nodes_impossible) break;
    const Counts counts = read_counts(file.path());
    alarms += std::max(counts.alarms, code == 0 ? 0 : 1);
    std::cout << "| " << during << " | " << options.ranks << " | " << options.nodes << " | "
              << number(options.false_alarm_minutes, 1) << " | " << counts.rounds << " | " << counts.stops << " | "
              << number(counts.longest_stop, 2) << " | " << counts.late << " | " << counts.alarms << " | "
              << share_of_cpu(counts.cpu) << " |" << std::endl;
    if (counts.alarms > 0) std::cerr << "first alarm:" << counts.first << '\n';
  }
  std::cout
      << "\n- stops: by SIGSTOP, for 0.8 s; a busy machine may be late to end them, and a rank is given up after "
         "1.5 s\n- late: by 0.3 s, or 15 s of computing\n- signs of life: what the threads that give and look for them "
         "spend, and the one that serves the store, of the CPU time of all ranks\n- no deadline and no variable is "
         "set\n- "
      << describe(machine) << '\n';
  return alarms > 0 ? 1 : 0;
}

}  // namespace tutti::bench
