#pragma once
// Every rank's few bytes to every rank of a node.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/shared/node.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

// Exchange number n of a channel uses mailbox n % mailboxes of every rank. A mailbox is written again only when all
// ranks have read what was in it `mailboxes` exchanges ago.
class SharedExchange final : public PendingExchange {
 public:
  SharedExchange(std::shared_ptr<SharedNode> node, Operation operation, std::span<const std::byte> mine,
                 std::uint32_t number);

  std::span<const std::byte> finish() override;
  bool ready() const override;

 private:
  std::shared_ptr<SharedNode> node_;
  Operation operation_;
  std::size_t length_;
  std::uint32_t number_;
  std::vector<std::byte> all_;
};

}  // namespace tutti::comm
