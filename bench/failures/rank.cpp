#include "failures/rank.h"

#include <signal.h>
#include <tutti/comm/communicator.h>
#include <tutti/core/error.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "failures/work.h"
#include "report/results.h"

namespace tutti::bench {
namespace {

constexpr int steps_before_failure = 20;
constexpr int survivor_exit_code = 3;
constexpr const char* astray = "astray";

template <typename Clock>
std::int64_t now() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

/// Starts a process that records the time at which the kernel closes the descriptors of this one.
void watch_closing(const std::string& file) {
  const auto watch = "(cat; date '+{\"closed\": %s%N}' >>" + file + ") >/dev/null 2>&1";
  static_cast<void>(::popen(watch.c_str(), "we"));  // never closed by this process
}

void append_moment(const std::string& file, const Moment& moment) {
  append_line(file, {{"rank", moment.rank},
                     {"nanoseconds", moment.nanoseconds},
                     {"process", ::getpid()},
                     {"named", moment.named},
                     {"said", moment.said.substr(0, moment.said.find('\n'))}});
}

void fail(const FailuresOptions& options, const Communicator& other_communicator) {
  append_moment(options.results, {.rank = other_communicator.rank(), .nanoseconds = now<std::chrono::steady_clock>()});
  if (options.failure == "astray") other_communicator.barrier({.name = astray}).wait();
  if (options.failure == "killed") {
    append_line(options.results, {{"killed", now<std::chrono::system_clock>()}});
    ::raise(SIGKILL);
  }
  if (options.failure == "stopped") {
    ::raise(SIGSTOP);
    std::_Exit(survivor_exit_code);  // the launcher has continued it: the other ranks have reported the failure
  }
  if (std::system("ip link set \"$GLOO_SOCKET_IFNAME\" down") != 0) throw std::runtime_error("cannot cut the link");
}

/// The launcher would wait for the stopped rank. All other ranks have reported, so killing it changes no result.
void kill_stopped_rank(const FailuresOptions& options, const Communicator& all) {
  const auto moments = read_moments(options.results);
  if (options.failure != "stopped" || static_cast<int>(moments.size()) < all.size()) return;
  for (const Moment& moment : moments) {
    if (moment.said.empty()) ::kill(moment.process, SIGKILL);
  }
}

}  // namespace

int run_failures_rank(const FailuresOptions& options, const Environment& environment) {
  const auto communicator = Communicator::connect(environment, options.communicator());
  const auto other_communicator = communicator.duplicate("elsewhere");
  const int rank = communicator.rank();
  if (options.failure == "killed" && rank == communicator.size() - 1) watch_closing(options.results);
  try {
    // Inside the try block, so that an exception destroys it: a failed rank makes no further calls.
    const auto step = work_of(options.during.front(), communicator);
    for (int count = 0;; ++count) {
      step();
      if (count == steps_before_failure && rank == communicator.size() - 1) fail(options, other_communicator);
    }
  } catch (const PeerError& failure) {
    append_moment(options.results, {.rank = rank,
                                    .nanoseconds = now<std::chrono::steady_clock>(),
                                    .named = failure.ranks(),
                                    .said = failure.what()});
  } catch (const MismatchError& mismatch) {
    const int last = communicator.size() - 1;
    const auto waits = "rank " + std::to_string(last) + " waits in barrier '" + astray + "'";
    const bool named = std::string(mismatch.what()).find(waits) != std::string::npos;
    append_moment(options.results, {.rank = rank,
                                    .nanoseconds = now<std::chrono::steady_clock>(),
                                    .named = {named ? last : 0},
                                    .said = mismatch.what()});
  } catch (const std::exception& error) {
    // The error names no rank.
    append_moment(options.results,
                  {.rank = rank, .nanoseconds = now<std::chrono::steady_clock>(), .said = error.what()});
  }
  kill_stopped_rank(options, communicator);
  return survivor_exit_code;
}

std::vector<Moment> read_moments(const std::string& file) {
  std::vector<Moment> moments;
  std::int64_t killed = 0;
  std::int64_t closed = 0;
  for (const auto& line : read_lines(file)) {
    if (line.contains("killed")) killed = line.at("killed");
    if (line.contains("closed")) closed = line.at("closed");
    if (!line.contains("rank")) continue;
    moments.push_back({.rank = line.at("rank"),
                       .nanoseconds = line.at("nanoseconds"),
                       .process = line.at("process"),
                       .named = line.at("named"),
                       .said = line.at("said")});
  }
  const auto failed = std::ranges::find_if(moments, [](const Moment& moment) { return moment.said.empty(); });
  if (failed != moments.end() && killed > 0 && closed > 0)
    failed->closing = 1e-9 * static_cast<double>(closed - killed);
  return moments;
}

}  // namespace tutti::bench
