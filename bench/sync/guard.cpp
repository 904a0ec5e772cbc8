#include "sync/guard.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tutti::bench {
namespace {

/// Rounding alone makes equal trainings differ by about 1e-5 of the distance trained, missing averages by all of it.
constexpr double largest_distance = 0.01;
/// Steps of AdamW amplify the rounding of small gradients.
constexpr double largest_distance_rounded = 0.2;

}  // namespace

Guard::Guard(Communicator communicator, Parameters start, std::string trusted, Measurement reference,
             bool whole_windows)
    : communicator_(std::move(communicator)),
      start_(std::move(start)),
      trusted_(std::move(trusted)),
      reference_(std::move(reference)),
      whole_windows_(whole_windows) {}

void Guard::check(const std::string& what, bool averages_short_windows, bool rounds_gradients,
                  const Measurement& measurement) {
  const double largest = rounds_gradients ? largest_distance_rounded : largest_distance;
  const auto digests = communicator_.all_gather_object(std::to_string(digest(measurement.after_epoch)));
  if (std::adjacent_find(digests.begin(), digests.end(), std::not_equal_to<>{}) != digests.end()) {
    faults_.push_back(what + ": the ranks ended with different parameters");
  }
  check_distance(what, measurement.after_warm_up, reference_.after_warm_up, largest);
  // The other systems divide a short window by the full number of steps, as Accelerate's guide does.
  if (whole_windows_ || !averages_short_windows) {
    check_distance(what, measurement.after_epoch, reference_.after_epoch, largest);
  }
}

void Guard::check_distance(const std::string& what, const Parameters& parameters, const Parameters& reference,
                           double largest) {
  const double distance = relative_distance(parameters, reference, start_);
  if (distance < largest) return;
  faults_.push_back(what + ": the parameters differ from those of " + trusted_ + " by " + std::to_string(distance) +
                    " of the distance trained");
}

}  // namespace tutti::bench
