#pragma once
// Which bucket plan to keep, from what the first synchronizations measured. Pure: every rank feeds it the same numbers
// and comes to the same plan.
//
// The first round shows the order in which gradients become ready. Then plans in that order, with caps around the one
// that was asked for, take turns of some rounds each, and the one with the fastest round stays. What decides the best
// cap (latency of the links, cores that are free, the model) is measured instead of modelled. How long a round took is
// known in the next one.
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "sync/bucket_plan.h"

namespace tutti::sync {

class BucketTuner {
 public:
  static constexpr int rounds_of_candidate = 2;
  /// Rounds that tell nothing, one after the other, after which the plan stays as it is.
  static constexpr int patience = 20;

  /// A tuner of what plan_buckets(gradients, options) makes. One that is not `measured`, or has one bucket, is done.
  BucketTuner(std::vector<GradientSize> gradients, BucketOptions options);

  /// Whether the plan stays.
  bool done() const { return done_; }
  /// After a round: how long the round before it took from the begin of its backward pass on the slowest rank, nullopt
  /// where a rank does not tell; and the parameters in the order of this round's gradients, -1 where there is none.
  /// Returns the plan of the next round, if it is another one than now.
  std::optional<BucketPlan> learn(std::optional<double> last_seconds, std::span<const int> order);

 private:
  struct Candidate {
    BucketPlan plan;
    int rounds = 0;
    double fastest = 0;
  };

  void make_candidates(std::span<const int> order);
  std::optional<BucketPlan> use(std::size_t candidate);

  std::vector<GradientSize> gradients_;
  BucketOptions options_;
  BucketPlan present_;
  std::vector<Candidate> candidates_;
  std::size_t tried_ = 0;
  bool fresh_ = true;  ///< the last round had another plan
  int silent_ = 0;
  bool done_ = false;
};

}  // namespace tutti::sync
