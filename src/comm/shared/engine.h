#pragma once
// Collectives between the ranks of one node without messages.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/engine/forwarding_engine.h"
#include "comm/shared/node.h"
#include "comm/shared/stage.h"
#include "comm/shared/sum.h"
#include "comm/sums/combine.h"

namespace tutti::comm {

/// Sums in memory from allocate() are made where they lie, other tensors go through a stage, small things through
/// mailboxes. What cannot be shared goes over `messages`, with a line in the log.
class SharedMemoryEngine final : public ForwardingEngine {
 public:
  SharedMemoryEngine(const std::shared_ptr<Engine>& messages, ChooseEngine for_groups,
                     std::shared_ptr<SharedNode> node);

  const std::string& name() const override { return name_; }

  std::unique_ptr<PendingSum> start_sum(const Operation& operation, const at::Tensor& flat,
                                        const std::shared_ptr<const WireCodec>& codec) override;
  std::unique_ptr<PendingExchange> start_exchange(const Operation& operation, std::span<const std::byte> mine) override;

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override;
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override;
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override;
  void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override;
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override;
  void exchange_parts(const Operation& operation, const std::vector<at::Tensor>& outputs,
                      const std::vector<at::Tensor>& inputs, std::size_t longest) override;
  bool is_gone(int rank) const override { return node_->is_gone(rank); }
  bool stands_still(bool still) noexcept override { return node_->stands_still(still); }
  std::size_t cheap_exchange_bytes() const override { return mailbox_bytes; }
  int looks_before_sleep() const override { return node_->looks_before_sleep(); }

  at::Tensor allocate(const Operation& operation, std::int64_t bytes) override;
  std::shared_ptr<Engine> connect_again(const std::vector<int>& members, const std::string& name,
                                        std::chrono::milliseconds timeout) override;
  std::shared_ptr<Engine> duplicate(const std::string& name, std::chrono::milliseconds timeout) override;
  void connect() override {}
  std::vector<std::byte> meet(const Operation& operation, std::span<const std::byte> mine) override;
  std::shared_ptr<Bulletin> bulletin() override;
  void close() noexcept override;

  /// As duplicate(): the ranks meet in the memory that they share. Null where no more memory can be had: `reason` says
  /// why.
  std::shared_ptr<SharedMemoryEngine> share_again(const std::string& name, std::chrono::milliseconds timeout,
                                                  std::string& reason);

  // For sums over several nodes.
  const std::shared_ptr<SharedNode>& node() const { return node_; }
  /// Where `flat` lies; nullopt unless in memory from allocate().
  std::optional<SharedPlace> place_of(const at::Tensor& flat) const;
  std::uint32_t next_sum();

 private:
  std::unique_ptr<PendingSum> sum_in_place(const Operation& operation, const at::Tensor& flat,
                                           const Combination& combination);
  SharedStage* stage_for(const Operation& operation);

  ChooseEngine for_groups_;
  std::shared_ptr<SharedNode> node_;
  std::string name_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<const SharedAllocation>> allocations_;
  std::int64_t allocated_ = 0;
  std::uint32_t sums_ = 0;
  std::uint32_t exchanges_ = 0;
  std::unique_ptr<SharedStage> stage_;  // of the channel's thread
  bool no_stage_ = false;
};

/// What the ranks are at while they set up memory, before a call has a number.
Operation sharing_memory(std::chrono::milliseconds timeout);

/// All ranks of `messages` must be on one node; every rank must call it. Where memory cannot be shared it returns null,
/// and `reason` says why. `for_groups` picks the engines of groups (Engine::connect_again). Throws TransferError.
std::shared_ptr<SharedMemoryEngine> make_shared_memory_engine(const std::shared_ptr<Engine>& messages,
                                                              ChooseEngine for_groups,
                                                              std::chrono::milliseconds timeout, std::string& reason);

}  // namespace tutti::comm
