#pragma once
// The exchange of failure reports between ranks. flight/wait_graph.h finds the root cause in them.
#include <memory>

#include "comm/backend/transfer_error.h"
#include "flight/wait_graph.h"

namespace tutti::comm {

using flight::FailureReport;
using flight::FailureReports;
using flight::RootCause;

class RootCauseQuery {
 public:
  /// Publishes this rank's report.
  RootCauseQuery(std::shared_ptr<FailureBoard> failure_board, int rank, int size, FailureReport own_report);

  /// Waits for the reports of the other ranks, for at most 0.7 s after the report was published; for at most 0.1 s if
  /// they can no longer be passed on.
  RootCause find();

 private:
  FailureReports read_reports();
  RootCause owner_failure(bool is_lost) const;

  std::shared_ptr<FailureBoard> failure_board_;
  int rank_;
  int size_;
  Deadline published_at_;
  FailureReport own_report_;
};

}  // namespace tutti::comm
