#pragma once
// The exchange of failure reports between ranks. flight/wait_graph.h finds the root cause in them.
#include <memory>

#include "comm/backend/operation.h"
#include "comm/backend/peer_health.h"
#include "comm/backend/transfer_error.h"
#include "flight/wait_graph.h"

namespace tutti::comm {

using flight::FailureReport;
using flight::FailureReports;
using flight::RootCause;

FailureReport make_report(const TransferError& error, const Operation& operation);

class RootCauseQuery {
 public:
  /// Publishes this rank's report of `operation`. `health` and `operation` outlive this object.
  RootCauseQuery(PeerHealth& health, int rank, int size, const Operation& operation, FailureReport own_report);

  /// Waits for the reports of the other ranks, for at most 0.7 s after the report was published; for at most 0.1 s if
  /// they can no longer be passed on.
  RootCause find();

 private:
  FailureReports read_reports();
  RootCause owner_failure(bool is_lost) const;
  bool replace_report_if_peers_failed();

  PeerHealth& health_;
  std::shared_ptr<FailureBoard> failure_board_;
  int rank_;
  int size_;
  const Operation& operation_;
  Deadline published_at_;
  FailureReport own_report_;
};

}  // namespace tutti::comm
