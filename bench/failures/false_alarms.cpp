#include "failures/false_alarms.h"

#include <signal.h>
#include <tutti/comm/communicator.h>
#include <tutti/core/error.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "command/anonymous_file.h"
#include "command/child_process.h"
#include "failures/heartbeat_cpu.h"
#include "failures/work.h"
#include "report/report.h"
#include "report/statistics.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int steps_between_checks = 20;

void compute_for(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

/// Stops this process for `seconds`, as Ctrl+Z does. That is shorter than the heartbeat timeout, unless a busy machine
/// sends the SIGCONT late. Returns the duration of the stop.
std::chrono::duration<double> stop_this_process(double seconds) {
  const auto wake = "(sleep " + number(seconds, 1) + "; kill -CONT " + std::to_string(::getpid()) + ") &";
  if (std::system(wake.c_str()) != 0) throw std::runtime_error("cannot start a shell for the SIGCONT");
  const auto begin = Clock::now();
  ::raise(SIGSTOP);
  return Clock::now() - begin;
}

/// Delays and stops of a rank that has not failed.
class Disturbances {
 public:
  Disturbances(int rank, double stall) : stall_(stall), random_(static_cast<unsigned>(rank)) {}

  void maybe() {
    const int drawn = std::uniform_int_distribution(1, 2000)(random_);
    if (drawn <= 4) {
      longest_stop = std::max(longest_stop, stop_this_process(stall_).count());
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
  double stall_;
  std::mt19937 random_;
};

struct Counts {
  std::int64_t steps = 0;  // of rank 0
  std::int64_t stops = 0;
  double longest_stop = 0;
  std::int64_t late = 0;
  CpuTime cpu{};
  int alarms = 0;
  std::string first{};  // message of the first alarm
};

Counts read_counts(const std::string& file) {
  Counts counts;
  for (const auto& line : read_lines(file)) {
    if (line.contains("steps")) counts.steps = line.at("steps");
    counts.stops += line.at("stops").get<std::int64_t>();
    counts.longest_stop = std::max<double>(counts.longest_stop, line.at("longest_stop"));
    counts.late += line.at("late").get<std::int64_t>();
    counts.cpu.heartbeats += line.at("cpu_of_heartbeats").get<double>();
    counts.cpu.all += line.at("cpu").get<double>();
    if (line.contains("alarm") && counts.alarms++ == 0) counts.first = line.at("alarm");
  }
  return counts;
}

/// Empty for a job that an alarm ended: its ranks recorded no CPU times.
std::string share_of_cpu(const CpuTime& cpu) {
  return cpu.all > 0 ? number(100 * cpu.heartbeats / cpu.all, 3) + " %" : "";
}

}  // namespace

int run_healthy_rank(const FailuresOptions& options, const Environment& environment) {
  std::atomic<bool> ended = false;
  const std::jthread busy_thread([&] {
    while (!ended) compute_for(std::chrono::milliseconds(1));
  });
  Disturbances disturbances(environment.rank, options.stall);
  std::int64_t steps = 0;
  CpuTime cpu;
  Labels line;
  try {
    const auto communicator = Communicator::connect(environment, options.communicator());
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
    line["alarm"] = error.what();
  }
  ended = true;
  line.update({{"stops", disturbances.stops},
               {"longest_stop", disturbances.longest_stop},
               {"late", disturbances.late},
               {"cpu_of_heartbeats", cpu.heartbeats},
               {"cpu", cpu.all}});
  if (environment.rank == 0) line["steps"] = steps;
  append_line(options.results, line);
  return line.contains("alarm") ? 1 : 0;
}

int count_false_alarms(const FailuresOptions& options) {
  Report report;
  const Place place{.ranks = options.ranks, .nodes = options.nodes};
  report.add_text("Ranks that keep all cores busy, are late or stopped for " + number(options.stall, 1) +
                  " s at random; no rank fails.");
  report.add_table({"during", "ranks", "nodes", "minutes", "steps", "stops", "longest, s", "late", "false alarms",
                    "CPU for heartbeats"});
  int alarms = 0;
  for (const std::string& during : options.during) {
    const AnonymousFile file;
    const auto command =
        launched(place, {own_program(), "failures", "--false-alarms", std::to_string(options.false_alarm_minutes),
                         "--timeout", std::to_string(options.timeout), "--stall", number(options.stall, 1), "--during",
                         during, "--results", file.path()});
    const int code = run_program(command, variables_of(place));
    if (code == nodes_impossible) break;
    const Counts counts = read_counts(file.path());
    alarms += std::max(counts.alarms, code == 0 ? 0 : 1);
    report.add_row({during, std::to_string(options.ranks), std::to_string(options.nodes),
                    number(options.false_alarm_minutes, 1), std::to_string(counts.steps), std::to_string(counts.stops),
                    number(counts.longest_stop, 2), std::to_string(counts.late), std::to_string(counts.alarms),
                    share_of_cpu(counts.cpu)});
    report.add_json({{"during", during},
                     {"ranks", options.ranks},
                     {"nodes", options.nodes},
                     {"minutes", options.false_alarm_minutes},
                     {"steps", counts.steps},
                     {"stops", counts.stops},
                     {"longest_stop", counts.longest_stop},
                     {"late", counts.late},
                     {"false_alarms", counts.alarms},
                     {"cpu_of_heartbeats", counts.cpu.heartbeats},
                     {"cpu", counts.cpu.all}});
    std::cerr << during << ": " << counted(counts.alarms, "false alarm") << '\n';
    if (counts.alarms > 0) std::cerr << "first alarm: " << counts.first << '\n';
  }
  report.add_note("stops: by SIGSTOP, for " + number(options.stall, 1) +
                  " s; a busy machine may end them late, and a rank has failed after " +
                  std::to_string(options.timeout) + " s");
  report.add_note("late: by 0.3 s, or 15 s of computing");
  report.add_note(
      "heartbeats: share of the threads that send and check them, and of the thread that runs the coordinator, in the "
      "CPU time of all ranks");
  report.add_note("heartbeat_timeout and deadlock_timeout are " + std::to_string(options.timeout) +
                  " s; no other timeout and no environment variable is set");
  report.finish(options.json);
  return alarms > 0 ? 1 : 0;
}

}  // namespace tutti::bench
