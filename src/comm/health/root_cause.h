#pragma once
// The exchange of failure reports between ranks. flight/wait_graph.h finds the root cause in them.
#include <memory>
#include <thread>

#include "comm/backend/transfer_error.h"
#include "flight/wait_graph.h"

namespace tutti::comm {

using flight::FailureReport;
using flight::FailureReports;
using flight::RootCause;

/// Publishes this rank's report at once, then reads those of the other ranks for at most 0.7 s. After lost heartbeats
/// for at most 0.1 s, because the store may be on the failed machine.
class RootCauseQuery {
 public:
  RootCauseQuery(std::shared_ptr<FailureBoard> failure_board, int rank, int size, FailureReport own_report);
  ~RootCauseQuery();
  RootCauseQuery(const RootCauseQuery&) = delete;
  RootCauseQuery& operator=(const RootCauseQuery&) = delete;

  /// Returns when this rank's report is published, or at the timeout.
  void wait_until_published();
  RootCause root_cause();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  /// Waits for `done`; returns false at the timeout, which is shorter if the failure board is known to be unreachable.
  template <typename Done>
  bool wait(const Done& done);

  std::shared_ptr<FailureBoard> failure_board_;
  std::thread thread_;
  int rank_;
  int size_;
  int owner_;
  Deadline start_ = Clock::now();
  FailureReport own_report_;
};

}  // namespace tutti::comm
