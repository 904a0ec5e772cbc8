#pragma once
// An engine that leaves to another one what it does not do better itself.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/engine.h"

namespace tutti::comm {

class ForwardingEngine : public Engine {
 public:
  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  const NodeLayout& layout() const override { return below_->layout(); }

  std::unique_ptr<PendingSum> start_sum(const Operation& operation, const at::Tensor& flat,
                                        const std::shared_ptr<const WireCodec>& codec) override {
    return below_->start_sum(operation, flat, codec);
  }
  std::unique_ptr<PendingExchange> start_exchange(const Operation& operation,
                                                  std::span<const std::byte> mine) override {
    return below_->start_exchange(operation, mine);
  }
  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override {
    below_->all_reduce(operation, flat, op);
  }
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    below_->all_gather(operation, output, input);
  }
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override {
    below_->reduce_scatter(operation, output, input, op);
  }
  void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    below_->all_to_all(operation, output, input);
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override {
    below_->broadcast(operation, tensor, root);
  }
  void exchange_parts(const Operation& operation, const std::vector<at::Tensor>& outputs,
                      const std::vector<at::Tensor>& inputs, std::size_t longest) override {
    below_->exchange_parts(operation, outputs, inputs, longest);
  }
  bool is_gone(int rank) const override { return below_->is_gone(rank); }
  void throw_if_silent() const override { below_->throw_if_silent(); }
  bool stands_still(bool still) noexcept override { return below_->stands_still(still); }
  void connect() override { below_->connect(); }
  std::vector<std::byte> meet(const Operation& operation, std::span<const std::byte> mine) override {
    return below_->meet(operation, mine);
  }
  std::size_t cheap_exchange_bytes() const override { return below_->cheap_exchange_bytes(); }
  int looks_before_sleep() const override { return below_->looks_before_sleep(); }
  at::Tensor allocate(const Operation& operation, std::int64_t bytes) override {
    return below_->allocate(operation, bytes);
  }
  std::shared_ptr<Bulletin> bulletin() override { return below_->bulletin(); }
  void close() noexcept override { below_->close(); }

 protected:
  explicit ForwardingEngine(std::shared_ptr<Engine> below) : below_(std::move(below)) {}
  Engine& below() const { return *below_; }

 private:
  std::shared_ptr<Engine> below_;
};

}  // namespace tutti::comm
