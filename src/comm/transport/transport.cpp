#include "comm/transport/transport.h"

#include <set>

namespace tutti::comm {

void wait_all(Transfers& transfers, Deadline deadline) {
  std::optional<TransferError> first;
  std::set<int> late;
  for (auto& transfer : transfers) {
    try {
      transfer->wait(deadline);
    } catch (const TransferError& error) {
      if (error.kind() == TransferError::Kind::timeout) {
        late.insert(transfer->peer());
      } else if (!first) {
        throw;
      }
      if (!first) first = error;
    }
  }
  transfers.clear();
  if (!first) return;
  throw TransferError(first->kind(), {late.begin(), late.end()}, first->what());
}

}  // namespace tutti::comm
