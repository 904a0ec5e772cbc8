// The window's machine against a naive model, over all sequences of events up to a length, on one rank: what .grad is,
// and what is refused.
#include "sync/window_life.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::test {
namespace {

using sync::Clearing;
using sync::WindowLife;

/// P: a pass, Q: one under no_sync(), S: step, C: zero_grad(), A: abandon_window(), O: a scope opens, L: one that is
/// its window's last, X: it closes.
constexpr std::string_view events = "PQSCAOLX";

double weight_of(char open) {
  return open == 'L' ? 2 : 1;
}

/// .grad as the Reducer makes it from what the machine says.
class Driven {
 public:
  /// False where the event is refused.
  bool apply(char event, double value) {
    try {
      switch (event) {
        case 'P':
          pass(value, !life_.scope() || life_.scope()->syncs);
          break;
        case 'Q':
          pass(value, false);
          break;
        case 'S':
          step();
          break;
        case 'C':
          clear(life_.clearing());
          break;
        case 'A':
          clear(Clearing::window);
          break;
        case 'X':
          if (life_.round_due_at_close()) round();
          life_.close_scope();
          break;
        default:
          life_.open_scope({.weight = weight_of(event), .syncs = event == 'L'});
      }
    } catch (const UsageError&) {
      return false;
    }
    return true;
  }
  /// The gradient; NaN where there is none, or it is no mean yet.
  double mean() const { return gradient_ && averaged_ ? *gradient_ : std::nan(""); }

 private:
  std::optional<std::string> kept() const {
    return life_.over() && gradient_ ? std::optional<std::string>("p") : std::nullopt;
  }
  void pass(double value, bool synchronizes) {
    const bool over = life_.over();
    const auto left = kept();
    life_.begin_pass(left);
    if (over) divisor_ = life_.weight_of_kept();
    make_share();
    gradient_ = gradient_.value_or(0) + value;
    if (synchronizes) round();
    life_.end_pass(synchronizes);
  }
  void make_share() {
    if (averaged_ && gradient_) *gradient_ *= divisor_;
    averaged_ = false;
  }
  void round() {
    life_.begin_round(kept());
    if (life_.over()) divisor_ = life_.weight_of_kept();
    const Window& window = life_.window();
    const bool empty = window.passes() == 0;
    if (!empty) {
      make_share();
      divisor_ = window.weighting() == Weighting::weighted ? window.weight() : 1;
      if (gradient_) *gradient_ /= divisor_;
      averaged_ = true;
    }
    life_.end_round(window.weighting(), empty, life_.over());
  }
  void step() {
    if (life_.scope() && !life_.scope()->syncs) return;
    if (life_.round_due_at_step()) round();
    life_.step();
  }
  void clear(Clearing what) {
    if (what == Clearing::nothing) return;
    if (life_.round_due_at_clear()) round();
    gradient_.reset();
    averaged_ = false;
    life_.cleared(what, false);
  }

  WindowLife life_;
  std::optional<double> gradient_;
  bool averaged_ = false;
  double divisor_ = 1;
};

/// The same as it is said in the documents: a list of what every pass has brought, and no states.
class Told {
 public:
  bool apply(char event, double value) {
    switch (event) {
      case 'P':
      case 'Q':
        return pass(value, event == 'P');
      case 'S':
        if (scope_ && !last_) return true;
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
        if (last_ && stepped_ && !brought_.empty()) finish(false);
        scope_ = 0;
        return true;
      default:
        if (scope_ != 0) return false;
        scope_ = ++scopes_;
        last_ = event == 'L';
        stepped_ = false;
        weight_ = weight_of(event);
        return true;
    }
  }
  bool in_scope() const { return scope_ != 0; }
  double mean() const { return synchronized_ ? total() : std::nan(""); }

 private:
  struct Brought {
    double value;
    int scope;
    double weight;
  };

  double total() const {
    double sum = 0;
    double weights = 0;
    std::set<int> weighed;
    for (const Brought& one : brought_) {
      sum += one.value;
      if (one.scope != 0 && weighed.insert(one.scope).second) weights += one.weight;
    }
    return base_.value_or(0) + (weights > 0 ? sum / weights : sum);
  }
  bool pass(double value, bool synchronizes) {
    if (brought_.empty() && base_ && scope_ != 0) {
      // To gradients of before only the last scope adds, and to what was stepped with only in the same scope.
      if (!last_ || (base_used_ && base_scope_ != scope_)) return false;
    }
    if (!brought_.empty() && (brought_.front().scope != 0) != (scope_ != 0)) return false;
    brought_.push_back({value, scope_, weight_});
    synchronized_ = synchronizes && (scope_ == 0 || last_);
    return true;
  }
  void finish(bool used) {
    if (brought_.empty()) {
      if (used) base_used_ = true, base_scope_ = scope_;
      return;
    }
    base_ = total();
    base_used_ = used;
    base_scope_ = scope_;
    brought_.clear();
    synchronized_ = true;
  }
  void clear() {
    if (scope_ == 0 || brought_.empty() || brought_.front().scope == 0) return forget();
    if (brought_.back().scope == scope_ && last_) forget();
  }
  void forget() {
    brought_.clear();
    base_.reset();
    synchronized_ = false;
  }

  std::vector<Brought> brought_;
  std::optional<double> base_;
  bool base_used_ = false;
  int base_scope_ = 0;
  bool synchronized_ = false;
  int scope_ = 0;
  int scopes_ = 0;
  bool last_ = false;
  bool stepped_ = false;
  double weight_ = 1;
};

int sequences = 0;

void try_all(const Driven& driven, const Told& told, const std::string& before, std::size_t length) {
  if (before.size() == length || testing::Test::HasFailure()) return;
  for (const char event : events) {
    if (event == 'X' && !told.in_scope()) continue;
    Driven next = driven;
    Told model = told;
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
    try_all(next, model, now, length);
  }
}

TEST(WindowLife, IsWhatTheNaiveModelSaysForAllSequencesOfEvents) {
  try_all({}, {}, "", 7);
  EXPECT_GT(sequences, 500000);
}

TEST(WindowLife, TakesItsStateUpAgain) {
  WindowLife life;
  life.open_scope({.weight = 3, .syncs = false});
  life.begin_pass(std::nullopt);
  life.end_pass(false);
  life.close_scope();
  WindowLife loaded;
  loaded.load_state_dict(life.state_dict());
  EXPECT_TRUE(loaded.is(sync::Gradients::pending));
  EXPECT_EQ(loaded.window().weight(), 3);
  life.open_scope({.weight = 1, .syncs = true});
  life.begin_round(std::nullopt);
  life.end_round(Weighting::weighted, false, false);
  life.step();
  life.begin_pass(std::nullopt);
  life.begin_round(std::nullopt);
  life.end_round(Weighting::weighted, false, false);
  life.end_pass(true);
  life.close_scope();
  loaded.load_state_dict(life.state_dict());
  EXPECT_TRUE(loaded.is(sync::Gradients::left));
  life.step();
  loaded.load_state_dict(life.state_dict());
  EXPECT_TRUE(loaded.is(sync::Gradients::used));
}

TEST(WindowLife, AnErrorEndsWithClearing) {
  WindowLife life;
  life.begin_pass(std::nullopt);
  life.abandon("boom");
  EXPECT_EQ(life.clearing(), Clearing::window);
  EXPECT_TRUE(life.round_due_at_step());
  life.lose("told");
  EXPECT_TRUE(life.is(sync::Gradients::lost));
  life.cleared(life.clearing(), false);
  EXPECT_TRUE(life.is(sync::Gradients::none));
  EXPECT_FALSE(life.round_due_at_step());
}

}  // namespace
}  // namespace tutti::test
