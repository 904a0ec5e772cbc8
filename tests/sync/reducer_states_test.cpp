// Walks every row of the table "States of a reducer" in docs/algorithms.md: the state machines of the window, the pass
// and the synchronization, driven by events as Reducer::Impl drives them. No processes.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "sync/accumulation_window_state.h"
#include "sync/pass_state.h"
#include "sync/sync_state.h"

namespace tutti::reducer_states_test {
namespace {

using sync::AccumulationWindowState;
using sync::GradientState;
using sync::PassEvent;
using sync::PassState;
using sync::SyncEvent;
using sync::SyncState;

struct States {
  AccumulationWindowState window;
  PassState pass = PassState::none;
  SyncState sync = SyncState::idle;

  void on(PassEvent event) { pass = next_state(pass, event); }
  void on(SyncEvent event) { sync = next_state(sync, event); }
};

void open_sync(States& states) {
  if (states.window.is(GradientState::aborted)) states.on(SyncEvent::abort);
  states.window.begin_sync(std::nullopt);
  states.on(SyncEvent::open);
}

void close_sync(States& states) {
  if (states.sync != SyncState::open && states.sync != SyncState::abort_open) open_sync(states);
  states.on(SyncEvent::close);
}

void begin_pass(States& states, PassEvent event) {
  states.window.begin_pass(std::nullopt);
  states.on(event);
}

void fail_other_part(States& states, bool synchronizes) {
  states.window.join_pass();
  states.window.abort("exception");
  if (synchronizes) states.on(SyncEvent::abort);
}

void end_pass_if_open(States& states) {
  if (states.pass != PassState::none) states.on(PassEvent::end);
}

const std::map<std::string, std::function<void(States&)>>& events() {
  static const std::map<std::string, std::function<void(States&)>> all{
      {"a pass begins that does not synchronize", [](States& states) { begin_pass(states, PassEvent::begin_local); }},
      {"a pass begins that synchronizes", [](States& states) { begin_pass(states, PassEvent::begin_synchronizing); }},
      {"a bucket is ready", open_sync},
      {"all gradients are ready", close_sync},
      {"a pass over other parts of the model only ends, and synchronizes",
       [](States& states) {
         states.window.join_pass();
         open_sync(states);
         states.on(PassEvent::join);
       }},
      {"the headers of all ranks are here", close_sync},
      {"the result is here: no rank's pass has reached the parameters",
       [](States& states) {
         states.on(SyncEvent::end);
         states.window.end_unreached_sync();
         states.on(PassEvent::end);
       }},
      {"an exception ends a pass over other parts of the model only, which synchronizes",
       [](States& states) { fail_other_part(states, true); }},
      {"an exception ends a pass over other parts of the model only, which does not synchronize",
       [](States& states) { fail_other_part(states, false); }},
      {"the pass ends",
       [](States& states) {
         states.on(PassEvent::end);
         states.window.end_pass(false);
       }},
      {"the result is here",
       [](States& states) {
         states.on(SyncEvent::end);
         states.window.end_sync(Weighting::plain, false, false);
         if (states.pass == PassState::none) return;
         states.on(PassEvent::end);
         states.window.end_pass(true);
       }},
      {"the synchronization fails",
       [](States& states) {
         end_pass_if_open(states);
         states.window.invalidate("failed");
         states.on(SyncEvent::end);
       }},
      {"an exception ends the pass",
       [](States& states) {
         const bool synchronized = states.pass != PassState::local;
         states.on(PassEvent::end);
         states.window.abort("exception");
         if (synchronized) states.on(SyncEvent::abort);
       }},
      {"an exception leaves the window's last scope, or zero_grad() follows a refused call",
       [](States& states) {
         states.window.abort("exception");
         states.on(SyncEvent::abort);
       }},
      {"the trailer that reports the exception is sent", close_sync},
      {"the other ranks have the exception",
       [](States& states) {
         states.on(SyncEvent::end);
         states.window.invalidate("peers were notified");
         states.window.discard();
       }},
      {"step() or synchronize() is refused", [](States& states) { states.on(SyncEvent::refuse); }},
      {"a step, a scope's end or synchronize() synchronizes", close_sync},
      {"a step, a scope's end or synchronize() refuses to send a gradient",
       [](States& states) {
         states.window.abort("exception");
         states.on(SyncEvent::abort);
       }},
      {"the optimizer has stepped", [](States& states) { states.window.step(); }},
      {"zero_grad()", [](States& states) { states.window.on_clear(states.window.clearing(), false); }},
  };
  return all;
}

const std::map<std::string, GradientState> window_states{
    {"none", GradientState::none},         {"pending", GradientState::pending},   {"mean", GradientState::mean},
    {"finished", GradientState::finished}, {"consumed", GradientState::consumed}, {"aborted", GradientState::aborted},
    {"invalid", GradientState::invalid},
};
const std::map<std::string, PassState> pass_states{{"none", PassState::none},
                                                   {"local", PassState::local},
                                                   {"synchronizing", PassState::synchronizing},
                                                   {"joined", PassState::joined}};
const std::map<std::string, SyncState> sync_states{
    {"idle", SyncState::idle},
    {"refused", SyncState::refused},
    {"open", SyncState::open},
    {"closed", SyncState::closed},
    {"abort due", SyncState::abort_due},
    {"abort open", SyncState::abort_open},
    {"abort closed", SyncState::abort_closed},
};

/// A window in `state`.
AccumulationWindowState window_in(GradientState state) {
  AccumulationWindowState window;
  const auto run_pass = [&window](bool synchronized) {
    window.begin_pass(std::nullopt);
    if (synchronized) {
      window.begin_sync(std::nullopt);
      window.end_sync(window.window().weighting(), false, false);
    }
    window.end_pass(synchronized);
  };
  switch (state) {
    case GradientState::none:
      break;
    case GradientState::pending:
    case GradientState::mean:
      run_pass(state == GradientState::mean);
      break;
    case GradientState::finished:
      window.open_scope({.syncs = true});
      run_pass(true);
      window.step();
      run_pass(true);
      window.close_scope();
      break;
    case GradientState::consumed:
      run_pass(true);
      window.step();
      break;
    case GradientState::aborted:
      window.abort("exception");
      break;
    case GradientState::invalid:
      window.invalidate("failed");
  }
  return window;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    const auto begin = part.find_first_not_of(' ');
    parts.push_back(begin == std::string::npos ? "" : part.substr(begin, part.find_last_not_of(' ') - begin + 1));
  }
  return parts;
}

/// The cells of the rows of the table: event, three states before, three states after.
std::vector<std::vector<std::string>> rows() {
  std::ifstream page(TUTTI_ALGORITHMS_PAGE);
  std::vector<std::vector<std::string>> rows;
  bool in_section = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) in_section = line == "## States of a reducer";
    if (!in_section || !line.starts_with("| ")) continue;
    std::vector<std::string> cells = split(line.substr(1), '|');
    if (cells.front() != "event") rows.push_back(std::move(cells));
  }
  return rows;
}

TEST(ReducerStates, EveryRowOfTheTableHolds) {
  std::set<std::string> events_seen;
  std::set<SyncState> syncs_seen;
  int transitions = 0;
  for (const std::vector<std::string>& row : rows()) {
    ASSERT_EQ(row.size(), 7) << row.front();
    const std::string& event = row[0];
    ASSERT_TRUE(events().contains(event)) << event;
    events_seen.insert(event);
    for (const std::string& window : split(row[1], ',')) {
      for (const std::string& sync : split(row[3], ',')) {
        const std::string name = event + ": " + window + ", " + row[2] + ", " + sync;
        States states{.window = window_in(window_states.at(window)),
                      .pass = pass_states.at(row[2]),
                      .sync = sync_states.at(sync)};
        ASSERT_EQ(states.window.gradients(), window_states.at(window)) << name;
        syncs_seen.insert(states.sync);
        events().at(event)(states);
        EXPECT_EQ(states.window.gradients(), window_states.at(row[4] == "the same" ? window : row[4])) << name;
        EXPECT_EQ(states.pass, pass_states.at(row[5] == "the same" ? row[2] : row[5])) << name;
        EXPECT_EQ(states.sync, sync_states.at(row[6] == "the same" ? sync : row[6])) << name;
        ++transitions;
      }
    }
  }
  EXPECT_EQ(events_seen.size(), events().size());
  EXPECT_EQ(syncs_seen.size(), sync_states.size());
  EXPECT_GT(transitions, 60);
}

TEST(ReducerStates, ExcludedEventsThrow) {
  EXPECT_THROW(next_state(PassState::none, PassEvent::end), std::logic_error);
  EXPECT_THROW(next_state(PassState::local, PassEvent::begin_local), std::logic_error);
  EXPECT_THROW(next_state(PassState::local, PassEvent::join), std::logic_error);
  EXPECT_THROW(next_state(SyncState::idle, SyncEvent::close), std::logic_error);
  EXPECT_THROW(next_state(SyncState::refused, SyncEvent::close), std::logic_error);
  EXPECT_THROW(next_state(SyncState::open, SyncEvent::open), std::logic_error);
  EXPECT_THROW(next_state(SyncState::closed, SyncEvent::close), std::logic_error);
  EXPECT_THROW(next_state(SyncState::abort_closed, SyncEvent::open), std::logic_error);
}

}  // namespace
}  // namespace tutti::reducer_states_test
