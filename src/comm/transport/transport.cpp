#include "comm/transport/transport.h"

#include <algorithm>

namespace tutti::comm {

void wait_all(Transfers& transfers, Deadline deadline) {
  std::optional<TransferError> first;
  std::vector<int> late;
  for (auto& transfer : transfers) {
    try {
      transfer->wait(deadline);
    } catch (const TransferError& error) {
      if (error.kind() == TransferError::Kind::timeout) {
        late.push_back(transfer->peer());
      } else if (!first) {
        throw;
      }
      if (!first) first = error;
    }
  }
  transfers.clear();
  if (!first) return;
  std::sort(late.begin(), late.end());
  late.erase(std::unique(late.begin(), late.end()), late.end());
  throw TransferError(first->kind(), std::move(late), first->what());
}

}  // namespace tutti::comm
