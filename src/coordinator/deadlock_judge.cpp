#include "coordinator/deadlock_judge.h"

#include <algorithm>
#include <utility>

#include "flight/wait_state_text.h"

namespace tutti::coordinator {

DeadlockJudge::DeadlockJudge(int world_size, Milliseconds deadlock_timeout)
    : statements_(static_cast<std::size_t>(world_size)), deadlock_timeout_(deadlock_timeout) {}

bool DeadlockJudge::blocked(int rank, const std::string& wait_state, bool agrees, Time since) {
  auto& statement = statements_.at(static_cast<std::size_t>(rank));
  if (statement && statement->text == wait_state) {
    statement->agrees = agrees;
    return true;
  }
  unblocked(rank);
  auto state = flight::wait_state_from_text(wait_state);
  if (!state) return false;
  statement = {.text = wait_state, .state = *std::move(state), .agrees = agrees, .since = since};
  return true;
}

void DeadlockJudge::unblocked(int rank) {
  statements_.at(static_cast<std::size_t>(rank)).reset();
  is_evaluated_ = is_reported_ = is_certain_ = false;
  deadlock_.reset();
}

std::optional<Deadlock> DeadlockJudge::judge(Time now) {
  const auto is_blocked = [](const auto& statement) { return statement.has_value(); };
  if (is_certain_ || !std::ranges::all_of(statements_, is_blocked)) return std::nullopt;
  if (!std::exchange(is_evaluated_, true)) {
    std::vector<flight::WaitState> states;
    for (const auto& statement : statements_) states.push_back(statement->state);
    deadlock_ = flight::find_deadlock(states);
  }
  if (!deadlock_) return std::nullopt;
  const bool ends_calls = deadlock_timeout_ > Milliseconds::zero();
  if (ends_calls && std::ranges::all_of(statements_, [](const auto& statement) { return statement->agrees; })) {
    is_certain_ = true;
    return Deadlock{.text = *deadlock_, .is_certain = true};
  }
  const bool is_report_due =
      !is_reported_ && (!ends_calls || deadlock_timeout_ > report_delay) &&
      std::ranges::all_of(statements_, [&](const auto& statement) { return now - statement->since >= report_delay; });
  if (!is_report_due) return std::nullopt;
  is_reported_ = true;
  return Deadlock{.text = *deadlock_, .is_certain = false};
}

}  // namespace tutti::coordinator
