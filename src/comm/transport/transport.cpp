#include "comm/transport/transport.h"

#include <set>

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

}  // namespace tutti::comm
