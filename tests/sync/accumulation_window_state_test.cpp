// Compares AccumulationWindowState with a naive model over all sequences of events up to a length, on one rank: values
// of .grad and refused events.
#include "sync/accumulation_window_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::test {
namespace {

using sync::AccumulationWindowState;
using sync::Clearing;

/// P: pass, Q: pass under no_sync(), W: pass that reaches no parameter of this reducer, S: step(), C: zero_grad(), A:
/// discard_accumulation(), O: opens a scope, L: opens the last scope of a window, X: closes the scope.
constexpr std::string_view events = "PQWSCAOLX";

double weight_of(char open) {
  return open == 'L' ? 2 : 1;
}

/// How the reducer notices W.
enum class Notices {
  add_scope_weight,  ///< as in Accelerator::backward()
  other_reducer,     ///< the pass reaches another reducer of the scope
};

/// Computes .grad from the state, as the Reducer does.
class MachineUnderTest {
 public:
  explicit MachineUnderTest(Notices notices) : notices_(notices) {}
  /// Returns false if the event is refused.
  bool apply(char event, double value) {
    try {
      switch (event) {
        case 'P':
          pass(value, !window_state_.scope() || window_state_.scope()->syncs);
          break;
        case 'Q':
          pass(value, false);
          break;
        case 'W':
          if (notices_ == Notices::add_scope_weight) {
            window_state_.add_scope_weight();
          } else if (window_state_.scope()) {
            ++*window_state_.scope()->passes;
          }
          break;
        case 'S':
          step();
          break;
        case 'C':
          window_state_.add_due_weight();
          clear(window_state_.clearing());
          break;
        case 'A':
          clear(Clearing::window);
          break;
        case 'X':
          if (window_state_.sync_due_at_close()) synchronize();
          window_state_.close_scope();
          break;
        default:
          open_scope(event);
      }
    } catch (const UsageError&) {
      return false;
    }
    return true;
  }
  /// The gradient; NaN if there is none or it is not the mean yet.
  double mean() const { return gradient_ && averaged_ ? *gradient_ : std::nan(""); }

 private:
  std::optional<std::string> carried_over() const {
    return window_state_.is_over() && gradient_ ? std::optional<std::string>("p") : std::nullopt;
  }
  void open_scope(char event) {
    AccumulationStep step{.weight = weight_of(event), .syncs = event == 'L'};
    if (notices_ == Notices::other_reducer) step.passes = std::make_shared<std::atomic<std::int64_t>>(0);
    window_state_.open_scope(step);
  }
  void pass(double value, bool synchronizes) {
    const bool over = window_state_.is_over();
    const auto left = carried_over();
    window_state_.begin_pass(left);
    if (over) divisor_ = window_state_.carried_over_weight();
    to_local_share();
    gradient_ = gradient_.value_or(0) + value;
    if (synchronizes) synchronize();
    window_state_.end_pass(synchronizes);
  }
  void to_local_share() {
    if (averaged_ && gradient_) *gradient_ *= divisor_;
    averaged_ = false;
  }
  void synchronize() {
    window_state_.begin_sync(carried_over());
    if (window_state_.is_over()) divisor_ = window_state_.carried_over_weight();
    const Window& window = window_state_.window();
    const bool empty = window.passes() == 0;
    if (!empty) {
      to_local_share();
      divisor_ = window.weighting() == Weighting::weighted ? window.weight() : 1;
      if (gradient_) *gradient_ /= divisor_;
      averaged_ = true;
    }
    window_state_.end_sync(window.weighting(), empty, window_state_.is_over());
  }
  void step() {
    if (window_state_.awaits_last_scope()) throw UsageError("the window's last scope is still to come");
    if (window_state_.leaves_out_passes()) throw UsageError("the window's passes were outside of the scope");
    if (window_state_.scope() && !window_state_.scope()->syncs) return;
    if (window_state_.sync_due_at_step()) synchronize();
    window_state_.step();
  }
  void clear(Clearing what) {
    if (what == Clearing::nothing) return;
    if (window_state_.sync_due_at_clear()) synchronize();
    gradient_.reset();
    averaged_ = false;
    window_state_.on_clear(what, false);
  }

  Notices notices_;
  AccumulationWindowState window_state_;
  std::optional<double> gradient_;
  bool averaged_ = false;
  double divisor_ = 1;
};

/// The definition in docs/gradients.md: a list of the passes' contributions, without states.
class NaiveModel {
 public:
  explicit NaiveModel(Notices notices) : notices_(notices) {}
  bool apply(char event, double value) {
    switch (event) {
      case 'P':
      case 'Q':
        return pass(value, event == 'P');
      case 'W':
        has_pass_ = true;
        return scope_ == 0 || weigh();
      case 'S':
        if (scope_ == 0 && awaits_last_) return false;
        // Passes outside of the scope are not those of a step that the scope leaves out.
        if (scope_ && !last_) return contributions_.empty() || contributions_.front().scope != 0 || has_pass_;
        finish(true);
        stepped_ = true;
        return true;
      case 'C':
        clear();
        return true;
      case 'A':
        forget();
        return true;
      case 'X':
        if (last_ && stepped_ && reached()) finish(false);
        if (last_ && !reached()) contributions_.clear();
        complete_ = complete_ || last_;
        if (!awaits_last_) was_empty_ = !has_pass_;
        awaits_last_ = !complete_;
        scope_ = 0;
        return true;
      default:
        if (scope_ != 0) return false;
        scope_ = ++scopes_;
        last_ = event == 'L';
        has_pass_ = false;
        stepped_ = false;
        weight_ = weight_of(event);
        return true;
    }
  }
  bool in_scope() const { return scope_ != 0; }
  double mean() const { return synchronized_ ? total() : std::nan(""); }

 private:
  struct Contribution {
    double value;
    int scope;
    double weight;
  };

  double total() const {
    double sum = 0;
    double weights = 0;
    std::set<int> weighed;
    for (const Contribution& one : contributions_) {
      sum += one.value;
      if (one.scope != 0 && weighed.insert(one.scope).second) weights += one.weight;
    }
    return base_.value_or(0) + (weights > 0 ? sum / weights : sum);
  }
  /// Whether a pass of the window reached the parameter. The others have the value 0.
  bool reached() const {
    return std::ranges::any_of(contributions_, [](const Contribution& one) { return one.value != 0; });
  }
  bool reached_in_scope() const {
    return std::ranges::any_of(contributions_,
                               [&](const Contribution& one) { return one.value != 0 && one.scope == scope_; });
  }
  bool weigh() {
    // The other reducer's pass is not refused.
    if (!contributions_.empty() && contributions_.front().scope == 0) return notices_ == Notices::other_reducer;
    contributions_.push_back({0, scope_, weight_});
    awaits_last_ = false;
    if (!last_) complete_ = false;
    synchronized_ = false;
    return true;
  }
  bool pass(double value, bool synchronizes) {
    if (!reached() && base_ && scope_ != 0) {
      // Only the last scope adds to an earlier window's gradients. After a step only the step's scope does.
      if (!last_ || (base_used_ && base_scope_ != scope_)) return false;
    }
    if (scope_ == 0 && !reached()) contributions_.clear();
    if (!contributions_.empty() && (contributions_.front().scope != 0) != (scope_ != 0)) return false;
    contributions_.push_back({value, scope_, weight_});
    complete_ = false;
    if (scope_ != 0) has_pass_ = true;
    if (scope_ != 0 || !was_empty_) awaits_last_ = false;
    synchronized_ = synchronizes && (scope_ == 0 || last_);
    return true;
  }
  void finish(bool used) {
    complete_ = awaits_last_ = false;
    if (!reached()) {
      contributions_.clear();
      if (used) base_used_ = true, base_scope_ = scope_;
      return;
    }
    base_ = total();
    base_used_ = used;
    base_scope_ = scope_;
    contributions_.clear();
    synchronized_ = true;
  }
  void clear() {
    const bool ended = !reached() && (base_ || base_used_);
    if (scope_ != 0 && ended) {
      base_.reset();
      base_used_ = false;
      synchronized_ = false;
    } else if (scope_ == 0 || contributions_.empty() || contributions_.front().scope == 0 || complete_ ||
               (last_ && reached_in_scope())) {
      forget();
    }
  }
  void forget() {
    contributions_.clear();
    base_.reset();
    base_used_ = false;
    synchronized_ = false;
    complete_ = awaits_last_ = false;
  }

  Notices notices_;
  std::vector<Contribution> contributions_;
  std::optional<double> base_;
  bool base_used_ = false;
  int base_scope_ = 0;
  bool synchronized_ = false;
  int scope_ = 0;
  int scopes_ = 0;
  bool last_ = false;
  bool stepped_ = false;
  bool has_pass_ = false;     // a pass has run in the open scope
  bool was_empty_ = false;    // none has run in the scope after which the last one is awaited
  bool complete_ = false;     // the last scope of the contributions has closed
  bool awaits_last_ = false;  // a scope has closed, and the window's last scope is still to come
  double weight_ = 1;
};

int sequences = 0;

/// The machine after `before`. Copies of a machine would share their scope's count of passes.
MachineUnderTest replayed(Notices notices, const std::string& before) {
  MachineUnderTest machine(notices);
  for (std::size_t i = 0; i < before.size(); ++i) machine.apply(before[i], std::pow(3, static_cast<double>(i)));
  return machine;
}

void try_all(Notices notices, const MachineUnderTest& driven, const NaiveModel& naive, const std::string& before,
             std::size_t length) {
  if (before.size() == length || testing::Test::HasFailure()) return;
  for (const char event : events) {
    if (event == 'X' && !naive.in_scope()) continue;
    MachineUnderTest next = notices == Notices::other_reducer ? replayed(notices, before) : driven;
    NaiveModel model = naive;
    const std::string now = before + event;
    const double value = std::pow(3, static_cast<double>(before.size()));
    const bool accepted = model.apply(event, value);
    ASSERT_EQ(next.apply(event, value), accepted) << now;
    ++sequences;
    if (!accepted) continue;
    const double expected = model.mean();
    if (!std::isnan(expected)) {
      ASSERT_NEAR(next.mean(), expected, 1e-9 * std::abs(expected)) << now;
    }
    try_all(notices, next, model, now, length);
  }
}

TEST(AccumulationWindowState, MatchesTheNaiveModelForAllSequencesOfEvents) {
  constexpr Notices notices = Notices::add_scope_weight;
  try_all(notices, MachineUnderTest(notices), NaiveModel(notices), "", 7);
  EXPECT_GT(sequences, 500000);
}

TEST(AccumulationWindowState, CountsPassesOverOtherReducersOfItsScopes) {
  constexpr Notices notices = Notices::other_reducer;
  try_all(notices, MachineUnderTest(notices), NaiveModel(notices), "", 6);
}

TEST(AccumulationWindowState, RestoresItsState) {
  AccumulationWindowState state;
  AccumulationWindowState loaded;
  loaded.load_state_dict(state.state_dict());
  EXPECT_TRUE(loaded.is(sync::GradientState::none));
  state.open_scope({.weight = 3, .syncs = false});
  state.begin_pass(std::nullopt);
  state.end_pass(false);
  state.close_scope();
  loaded.load_state_dict(state.state_dict());
  EXPECT_TRUE(loaded.is(sync::GradientState::pending));
  EXPECT_EQ(loaded.window().weight(), 3);
  state.open_scope({.weight = 1, .syncs = true});
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::weighted, false, false);
  state.step();
  state.begin_pass(std::nullopt);
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::weighted, false, false);
  state.end_pass(true);
  state.close_scope();
  loaded.load_state_dict(state.state_dict());
  EXPECT_TRUE(loaded.is(sync::GradientState::finished));
  state.step();
  loaded.load_state_dict(state.state_dict());
  EXPECT_TRUE(loaded.is(sync::GradientState::consumed));
}

TEST(AccumulationWindowState, AMeanOfOtherRanksBelongsToTheWindowAlsoAfterALastScope) {
  AccumulationWindowState state;
  state.open_scope({.syncs = true});
  state.begin_pass(std::nullopt);
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::weighted, false, false);
  state.end_pass(true);
  state.step();
  state.on_clear(state.clearing(), false);
  state.close_scope();
  state.open_scope({.syncs = false});  // this rank omits its pass
  state.close_scope();
  state.begin_sync(std::nullopt);  // synchronize()
  state.end_sync(Weighting::weighted, false, false);
  state.open_scope({.syncs = false});
  EXPECT_EQ(state.clearing(), Clearing::nothing);
}

TEST(AccumulationWindowState, ASyncWithoutGradientsOutsideOfScopesKeepsTheWeightsOfScopes) {
  AccumulationWindowState state;
  state.begin_pass(std::nullopt);
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::plain, false, false);
  state.end_pass(true);
  state.step();
  state.open_scope({.weight = 3, .syncs = false});
  state.add_scope_weight();  // a pass over other models
  state.close_scope();
  state.begin_sync(std::nullopt);  // synchronize()
  state.end_sync(Weighting::plain, true, true);
  EXPECT_EQ(state.window().weight(), 3);
  EXPECT_EQ(state.window().syncs(), 0);
}

TEST(AccumulationWindowState, AnErrorEndsWithClearing) {
  AccumulationWindowState state;
  state.begin_pass(std::nullopt);
  state.abort("boom");
  EXPECT_EQ(state.clearing(), Clearing::window);
  EXPECT_TRUE(state.sync_due_at_step());
  state.invalidate("told");
  EXPECT_TRUE(state.is(sync::GradientState::invalid));
  state.on_clear(state.clearing(), false);
  EXPECT_TRUE(state.is(sync::GradientState::none));
  EXPECT_FALSE(state.sync_due_at_step());
}

}  // namespace
}  // namespace tutti::test
