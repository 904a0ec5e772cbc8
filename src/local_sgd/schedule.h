#pragma once
// The actions that are due after each step. No I/O, no tensors.
#include <cstdint>
#include <optional>

#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// The actions after one optimizer step, in this order.
struct DueActions {
  bool warms_up = false;       ///< the step belongs to the warm-up: no models are averaged
  bool ends_warmup = false;    ///< the step is the last of the warm-up
  bool inside_node = false;    ///< the ranks of a node average
  std::optional<int> sends;    ///< this fragment is sent
  std::optional<int> applies;  ///< the result of this fragment is applied

  bool operator==(const DueActions&) const = default;
};

/// The position in the schedule. Steps count from 1, after the warm-up and since the last finish().
class Schedule {
 public:
  /// `options` must have passed check_options().
  explicit Schedule(const LocalSgdAlgorithmOptions& options);

  /// The actions after the next step.
  DueActions next() const;
  void advance();
  /// Begins a round, as finish() requires. A warm-up continues.
  void restart();

  bool warming_up() const { return warmed_ < warmup_steps_; }
  /// Steps of the warm-up so far, and steps since.
  std::int64_t warmed() const { return warmed_; }
  std::int64_t position() const { return position_; }
  /// Moves to a saved position. Returns false, without a change, if the schedule has no such position.
  bool move_to(std::int64_t warmed, std::int64_t position);

 private:
  std::optional<int> fragment_at(std::int64_t step) const;

  std::int64_t local_steps_;
  std::int64_t warmup_steps_;
  std::int64_t inside_;
  std::int64_t fragments_;
  std::int64_t overlap_;
  std::int64_t warmed_ = 0;
  std::int64_t position_ = 0;
};

}  // namespace tutti::local_sgd
