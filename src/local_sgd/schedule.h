#pragma once
// What is due after which step. Pure: no tensors, no ranks.
#include <cstdint>
#include <optional>

#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// What is due after one optimizer step, in this order.
struct DueActions {
  bool warms_up = false;       ///< the step belongs to the warm-up: nothing is combined
  bool ends_warmup = false;    ///< it was the last of these: local models start from here
  bool inside_node = false;    ///< the ranks of a node average
  std::optional<int> sends;    ///< this fragment leaves
  std::optional<int> applies;  ///< the result of this fragment is applied

  bool operator==(const DueActions&) const = default;
};

/// A place in training. Steps count from 1, after the warm-up and since the last finish().
class Schedule {
 public:
  /// Options that check_options() accepts.
  explicit Schedule(const LocalSgdAlgorithmOptions& options);

  /// What is due after the next step.
  DueActions next() const;
  void advance();
  /// A round begins: what finish() leaves behind. A warm-up goes on where it was.
  void restart();

  bool warming_up() const { return warmed_ < warmup_steps_; }
  /// Steps of the warm-up, and steps since.
  std::int64_t warmed() const { return warmed_; }
  std::int64_t position() const { return position_; }
  /// Where another one stood. False, and nothing happens, for a place that cannot be.
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
