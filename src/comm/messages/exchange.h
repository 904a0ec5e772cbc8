#pragma once
// Every rank tells all others a few bytes, over messages: to each of them in small groups, in rounds in larger ones.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/messages/exchange_rounds.h"
#include "comm/messages/transport.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// Ranks up to which each message goes straight to its rank: nobody then waits for what a third one passes on.
inline constexpr int most_ranks_told_directly = 8;

/// All at once, and complete when all is there.
class DirectExchange final : public PendingExchange {
 public:
  DirectExchange(Transport& transport, Operation operation, std::span<const std::byte> mine);
  std::span<const std::byte> finish() override;

 private:
  Operation operation_;
  Block blocks_;
  Transfers transfers_;
};

/// The first round begins at once, the others in finish().
class ExchangeInRounds final : public PendingExchange {
 public:
  ExchangeInRounds(std::shared_ptr<Transport> transport, Operation operation, std::span<const std::byte> mine);
  std::span<const std::byte> finish() override;

 private:
  Block part(std::size_t first, std::size_t count) const { return blocks_.part(first * bytes_, count * bytes_); }
  void send(const ExchangeRound& round);

  std::shared_ptr<Transport> transport_;
  Operation operation_;
  std::size_t bytes_;  // of a block
  std::vector<ExchangeRound> rounds_;
  Block blocks_;  // from this rank's own on
  Transfers receives_;
  Transfers sends_;
};

}  // namespace tutti::comm
