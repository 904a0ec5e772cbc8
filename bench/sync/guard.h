#pragma once
// Checks that all systems compute the same: compares the parameters at the end of each training.
#include <string>
#include <vector>

#include "sync/stopwatch.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

class Guard {
 public:
  /// `start`: the parameters before training. `reference`: the parameters after training by the system `trusted`.
  /// `whole_windows`: the timed epoch has no short window.
  Guard(Communicator communicator, Parameters start, std::string trusted, Measurement reference, bool whole_windows);

  /// Compares the ranks with one another and with the reference. Every rank must call it.
  void check(const std::string& what, bool averages_short_windows, bool rounds_gradients,
             const Measurement& measurement);

  /// Returns the differences that were found, one line each.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void check_distance(const std::string& what, const Parameters& parameters, const Parameters& reference,
                      double largest);

  Communicator communicator_;
  Parameters start_;
  std::string trusted_;
  Measurement reference_;
  bool whole_windows_;
  std::vector<std::string> faults_;
};

}  // namespace tutti::bench
