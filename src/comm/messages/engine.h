#pragma once
// Every collective over point-to-point messages: one algorithm, whatever carries them.
#include "comm/engine/engine.h"
#include "comm/messages/scratch.h"
#include "comm/sums/combine.h"

namespace tutti::comm {

class MessageEngine final : public Engine {
 public:
  MessageEngine(std::shared_ptr<Transport> transport, NodeLayout layout);

  const std::string& name() const override { return transport_->name(); }
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  const NodeLayout& layout() const override { return layout_; }

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
  bool is_gone(int rank) const override { return transport_->is_gone(rank); }
  void throw_if_silent() const override { transport_->throw_if_silent(); }

  void connect() override { transport_->connect(); }
  std::vector<std::byte> meet(const Operation& operation, std::span<const std::byte> mine) override;
  at::Tensor allocate(const Operation& operation, std::int64_t bytes) override;
  std::shared_ptr<Engine> connect_again(const std::vector<int>& members, const std::string& name,
                                        std::chrono::milliseconds timeout) override;
  std::shared_ptr<Bulletin> bulletin() override { return transport_->bulletin(); }
  void close() noexcept override { transport_->close(); }

 private:
  std::unique_ptr<PendingSum> sum_of(const Operation& operation, const at::Tensor& flat, const Combination& combination,
                                     const std::shared_ptr<const WireCodec>& codec);
  // Part r of `output` comes from rank r; what goes to rank r is `part_for(r)`.
  template <typename PartFor>
  void exchange_equal_parts(const Operation& operation, const Block& output, const PartFor& part_for);

  std::shared_ptr<Transport> transport_;
  NodeLayout layout_;
  Scratch scratch_;
};

}  // namespace tutti::comm
