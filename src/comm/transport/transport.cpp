#include "comm/transport/transport.h"

#include <set>

#include "comm/backend/current_operation.h"
#include "comm/backend/describe.h"
#include "tutti/core/logging.h"

namespace tutti::comm {

void wait_all(Transfers& transfers, Deadline deadline) {
  std::set<int> late;
  std::string detail;
  for (auto& transfer : transfers) {
    try {
      transfer->wait(deadline);
    } catch (const TransferError& error) {
      if (error.kind() != TransferError::Kind::timeout) {
        if (late.empty()) throw;
        continue;
      }
      if (late.empty()) detail = error.what();
      late.insert(transfer->peer());
    }
  }
  transfers.clear();
  if (!late.empty()) throw TransferError(TransferError::Kind::timeout, {late.begin(), late.end()}, detail);
}

void log_slow_peer(const std::vector<int>& global_ranks, int rank, int peer, std::chrono::seconds waited,
                   const std::string& no_connection) {
  const bool is_reported_elsewhere = rank != (peer == 0 ? 1 : 0) || SuppressSlowWarning::is_active();
  if (is_reported_elsewhere && no_connection.empty()) return;
  const auto global_rank = [&](int member) { return global_ranks.at(static_cast<std::size_t>(member)); };
  const Operation* const call = CurrentOperation::get();
  Logger(global_rank(rank))
      .warning((call ? call->describe_with_call_site() : "a call") + " of a group of " +
               std::to_string(global_ranks.size()) + " has waited for " + describe_duration(waited) + " for rank " +
               std::to_string(global_rank(peer)) +
               (no_connection.empty() ? " (`tutti inspect` tells what it does)" : ": " + no_connection));
}

}  // namespace tutti::comm
