#include "sync/random_program.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <bit>
#include <random>

namespace tutti::test {

namespace {

class Generator {
 public:
  Generator(std::uint64_t seed, int ranks) : random_(seed) {
    program_.seed = seed;
    program_.ranks = ranks;
    program_.exact = ranks != 3;
  }

  Program program() {
    make_model();
    usual_length_ = 1 + below(4);
    uses_no_sync_ = chance(35);
    scales_losses_ = chance(30);
    program_.policy = chance(60) ? SyncPolicy::automatic : chance(50) ? SyncPolicy::manual : SyncPolicy::every_pass;
    const std::vector<std::int64_t> caps = {1, 100, 300, 1000, 1 << 20};
    program_.buckets = {.first_bucket_bytes = pick(caps), .bucket_bytes = pick(caps)};
    state_.resize(program_.optimizers);
    const std::size_t windows = 2 + below(6);
    for (std::size_t i = 0; i < windows; ++i) make_window(i + 1 == windows);
    return std::move(program_);
  }

 private:
  struct OptimizerState {
    bool open = false;   // the window began in an earlier ProgramWindow
    bool stale = false;  // the gradients are those of the last step
    double weight = 0;
  };

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <typename T>
  T pick(const std::vector<T>& values) {
    return values[below(values.size())];
  }

  void make_model() {
    program_.optimizers = chance(65) ? 1 : chance(75) ? 2 : 3;
    program_.parts = program_.optimizers > 1 && chance(60);
    const std::vector<std::vector<std::int64_t>> shapes = {{}, {1}, {3}, {17}, {64}, {2, 3}, {5, 7}, {0}, {2, 1, 9}};
    const int count = program_.optimizers + static_cast<int>(below(9));
    for (int i = 0; i < count; ++i) {
      ProgramParameter parameter{.shape = pick(shapes), .dtype = chance(75) ? at::kFloat : at::kDouble};
      parameter.transposed = parameter.shape.size() == 2 && chance(50);
      parameter.optimizer = i < program_.optimizers ? i : static_cast<int>(below(program_.optimizers));
      parameter.frozen = i >= program_.optimizers && chance(10);
      program_.parameters.push_back(parameter);
    }
    std::shuffle(program_.parameters.begin(), program_.parameters.end(), random_);
  }

  bool any_open() const { return std::ranges::any_of(state_, &OptimizerState::open); }

  void make_window(bool last) {
    ProgramWindow window;
    const bool goes_on = any_open();
    window.weighted = goes_on ? program_.windows.back().weighted : chance(45);
    window.local = goes_on ? program_.windows.back().local : chance(10);
    if (!program_.windows.empty() && window.local != program_.windows.back().local) {
      for (OptimizerState& state : state_) state = {};
    }
    window.steps.assign(program_.optimizers, true);
    if (program_.optimizers > 1 && !last && chance(30)) window.steps[below(program_.optimizers)] = false;
    const bool all_step = std::ranges::count(window.steps, true) == program_.optimizers;
    window.sync_each_batch = window.weighted && chance(15);
    window.step_in_scopes = window.weighted && chance(60);
    window.zero_first = window.step_in_scopes && chance(50);
    window.scopes.resize(chance(70) ? usual_length_ : 1 + below(5));
    window.clipping = chance(60) ? Clipping::none : chance(60) ? Clipping::in_place : Clipping::replaced;
    // A program must not replace gradients of a part that no rank's passes have reached.
    if (program_.parts && window.clipping == Clipping::replaced) window.clipping = Clipping::in_place;
    window.prepares_clipping = chance(50);
    if (!goes_on && all_step && !window.local && chance(15)) window.fault = make_fault(window);
    make_zeroing(window);

    const double scale = loss_scale();
    for (std::size_t i = 0; i < window.scopes.size(); ++i) make_scope(window, i, scale);
    for (int o = 0; o < program_.optimizers; ++o) close(window, o);
    program_.windows.push_back(std::move(window));
  }

  double loss_scale() { return scales_losses_ ? pick<double>({0.5, 1, 2, 8}) : 1.0; }

  Fault make_fault(const ProgramWindow& window) {
    const std::size_t last = window.scopes.size() - 1;
    Fault fault;
    if (!chance(75)) {
      fault.scope = below(window.scopes.size());
      return fault;
    }
    const bool in_backward = !window.weighted || chance(50);
    fault.where = in_backward ? Fault::Where::in_backward : Fault::Where::before_backward;
    fault.scope = window.weighted ? below(window.scopes.size()) : last;
    if (chance(75)) fault.rank = static_cast<int>(below(program_.ranks));
    const bool ends_window = fault.scope == last;
    if (window.weighted) {
      fault.swallowed = !ends_window && (!window.sync_each_batch || !in_backward);
      // Peers would wait for a rank that skips a synchronizing pass.
      if (!in_backward && window.sync_each_batch && !ends_window) fault.rank.reset();
      fault.loses_window = in_backward || ends_window;
    } else {
      // Automatic passes may or may not synchronize. If the failing pass does not, step() reports the fault.
      fault.swallowed = program_.policy == SyncPolicy::automatic || uses_no_sync_ || chance(50);
      if (fault.swallowed && program_.optimizers > 1) {
        fault = {};
        fault.scope = last;
      }
    }
    return fault;
  }

  void make_zeroing(ProgramWindow& window) {
    for (int o = 0; o < program_.optimizers; ++o) {
      OptimizerState& state = state_[o];
      Zeroing before = Zeroing::never;
      const bool must = state.stale && window.weighted && !window.zero_first;
      if (must || (!state.open && chance(30))) before = chance(70) ? Zeroing::to_none : Zeroing::in_place;
      if (before != Zeroing::never) state.weight = 0;
      window.zero_before.push_back(before);
      Zeroing after = chance(65) ? Zeroing::to_none : Zeroing::in_place;
      if (window.zero_first) {
        after = Zeroing::never;
      } else if (!window.step_in_scopes && chance(40)) {
        after = pick<Zeroing>({Zeroing::never, Zeroing::behind_the_back_to_none, Zeroing::behind_the_back_in_place});
      }
      window.zero_after.push_back(after);
    }
  }

  void make_scope(ProgramWindow& window, std::size_t index, double scale) {
    ProgramScope& scope = window.scopes[index];
    const bool last = index + 1 == window.scopes.size();
    const bool fails = window.fault && window.fault->scope == index && window.fault->where != Fault::Where::between;
    scope.passes.resize(window.weighted && chance(20) ? 2 : 1);
    scope.before = make_interlude(window, index);
    bool leaves_some_out = window.weighted && !window.sync_each_batch && scope.passes.size() == 1;
    for (ProgramPass& pass : scope.passes) {
      pass.loss_scale = chance(80) ? scale : loss_scale();
      pass.two_losses = chance(20) && !fails;
      pass.no_sync = uses_no_sync_ && chance(40);
      // The failing rank discards its window at once, so its peers must wait for it in this pass.
      if (fails && window.sync_each_batch) pass.no_sync = false;
      pass.trigger = uses_no_sync_ && chance(10) && !fails;
      leaves_some_out = leaves_some_out && !pass.trigger;
    }
    for (ProgramPass& pass : scope.passes) {
      // In a plain window all ranks' passes reach the same optimizers. Otherwise the ranks' counts of passes would
      // differ.
      std::vector<bool> reached(program_.optimizers, true);
      if (!window.weighted && !last && !pass.trigger && program_.optimizers > 1 && chance(30)) {
        reached[below(program_.optimizers)] = false;
      }
      for (int rank = 0; rank < program_.ranks; ++rank) {
        const bool none = leaves_some_out && !fails && chance(10);
        if (program_.parts && chance(50)) {
          reached.assign(program_.optimizers, false);
          reached[below(program_.optimizers)] = true;
        }
        pass.uses.push_back(none ? std::vector<Use>() : make_uses(reached, fails));
      }
      if (window.local) pass.uses.assign(program_.ranks, pass.uses[0]);
    }
    scope.present.assign(program_.ranks, true);
    for (int rank = 1; rank < program_.ranks; ++rank) {
      if (leaves_some_out && !fails && !window.local) scope.present[rank] = !chance(10);
    }
    if (fails && window.fault->where == Fault::Where::before_backward) {
      for (int rank = 0; rank < program_.ranks; ++rank) {
        if (window.fault->rank.value_or(rank) == rank) scope.present[rank] = false;
      }
    }
    if (window.weighted) make_weights(window, index);
  }

  Interlude make_interlude(const ProgramWindow& window, std::size_t index) {
    if (chance(60)) return Interlude::none;
    if (index == 0 || window.fault || chance(30)) return Interlude::evaluate;
    const auto interlude = pick<Interlude>({Interlude::synchronize, Interlude::discard, Interlude::save_and_load});
    if (window.local && interlude == Interlude::save_and_load) return Interlude::none;
    return interlude;
  }

  std::vector<Use> make_uses(const std::vector<bool>& reached, bool fails) {
    std::vector<Use> uses;
    for (int o = 0; o < program_.optimizers; ++o) {
      if (!reached[o]) continue;
      std::vector<int> trained;
      for (int i = 0; i < static_cast<int>(program_.parameters.size()); ++i) {
        if (program_.parameters[i].optimizer == o && !program_.parameters[i].frozen) trained.push_back(i);
      }
      const auto first = uses.size();
      for (const int parameter : trained) {
        if (chance(75)) uses.push_back({.parameter = parameter, .reach = reach(), .seed = random_()});
      }
      if (uses.size() == first) uses.push_back({.parameter = pick(trained), .reach = Reach::once, .seed = random_()});
      // With two optimizers, ranks that reach nested passes in different orders may deadlock.
      if (program_.optimizers == 1 && !fails && chance(15)) {
        uses.push_back({.parameter = pick(trained), .reach = Reach::nested, .seed = random_()});
      }
    }
    std::shuffle(uses.begin(), uses.end(), random_);
    return uses;
  }

  Reach reach() { return chance(85) ? Reach::once : Reach::twice; }

  void make_weights(ProgramWindow& window, std::size_t index) {
    ProgramScope& scope = window.scopes[index];
    const bool last = index + 1 == window.scopes.size();
    if (scope.before == Interlude::discard) {
      for (OptimizerState& state : state_) state.weight = 0;
    }
    if (scope.before == Interlude::synchronize) {
      // A window of weight 0 has no mean.
      const bool weightless = std::ranges::any_of(state_, [](const OptimizerState& s) { return s.weight == 0; });
      if (weightless) scope.before = Interlude::none;
      if (!weightless) note_round();
    }
    scope.weights.assign(program_.ranks, 0);
    for (double& weight : scope.weights) weight = pick<double>({0, 1, 1, 1, 2, 3});
    scope.weights[0] = std::max(scope.weights[0], 1.0);
    if (window.local) scope.weights.assign(program_.ranks, scope.weights[0]);
    const auto total = [&] {
      double sum = 0;
      for (int rank = 0; rank < program_.ranks; ++rank) sum += scope.present[rank] ? scope.weights[rank] : 0;
      return sum;
    };
    if (last && scope.present[0] && !window.local && chance(80)) {
      const auto so_far = static_cast<std::uint64_t>(state_[0].weight + total());
      scope.weights[0] += static_cast<double>(std::bit_ceil(so_far) - so_far);
    } else if (last && window.local && chance(80)) {
      const auto so_far = static_cast<std::uint64_t>(state_[0].weight + total()) / program_.ranks;
      for (double& weight : scope.weights) weight += static_cast<double>(std::bit_ceil(so_far) - so_far);
    }
    for (OptimizerState& state : state_) state.weight += total();
    const bool triggered = std::ranges::any_of(scope.passes, &ProgramPass::trigger);
    if (last || window.sync_each_batch || triggered) note_round();
  }

  // Dividing by a number that is not a power of two rounds.
  void note_round() {
    for (const OptimizerState& state : state_) {
      const auto weight = static_cast<std::uint64_t>(state.weight);
      if (!std::has_single_bit(weight)) program_.exact = false;
    }
  }

  void close(const ProgramWindow& window, int o) {
    OptimizerState& state = state_[o];
    if (window.fault && window.fault->loses_window) {
      state = {};
    } else if (!window.steps[o]) {
      state.open = true;
    } else {
      const Zeroing after = window.zero_after[o];
      state = {
          .open = false, .stale = after == Zeroing::never || after == Zeroing::behind_the_back_in_place, .weight = 0};
    }
  }

  std::mt19937_64 random_;
  Program program_;
  std::size_t usual_length_ = 1;
  bool uses_no_sync_ = false;
  bool scales_losses_ = false;
  std::vector<OptimizerState> state_;
};

}  // namespace

Program random_program(std::uint64_t seed, int ranks) {
  return Generator(seed, ranks).program();
}

at::Tensor random_integers(at::IntArrayRef shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  at::Tensor tensor = at::empty(shape, at::kDouble);
  auto* values = tensor.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) values[i] = static_cast<double>(random() % 9) - 4;
  return tensor;
}

at::Tensor gradient_of(const Program& program, const Use& use) {
  const auto& shape = program.parameters[use.parameter].shape;
  const at::Tensor gradient = random_integers(shape, use.seed);
  return use.reach == Reach::twice ? gradient + random_integers(shape, use.seed + 1) : gradient;
}

}  // namespace tutti::test
