#pragma once
// A base class for backends that forward to another backend the calls that they do not override.
#include <memory>
#include <utility>
#include <vector>

#include "comm/backend/backend.h"

namespace tutti::comm {

class ForwardingBackend : public Backend {
 public:
  void require_summable(const at::Tensor& flat) override { inner_->require_summable(flat); }
  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    return inner_->start_all_reduce(operation, flat, codec);
  }
  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                           std::span<const std::byte> input) override {
    return inner_->start_small_all_gather(operation, input);
  }
  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override {
    inner_->all_reduce(operation, flat, op);
  }
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    inner_->all_gather(operation, output, input);
  }
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override {
    inner_->reduce_scatter(operation, output, input, op);
  }
  void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    inner_->all_to_all(operation, output, input);
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override {
    inner_->broadcast(operation, tensor, root);
  }
  void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                    const std::vector<at::Tensor>& inputs, std::size_t longest) override {
    inner_->all_to_all_v(operation, outputs, inputs, longest);
  }
  bool peer_exited(int rank) const override { return inner_->peer_exited(rank); }
  void throw_if_peers_failed() const override { inner_->throw_if_peers_failed(); }
  std::vector<std::byte> bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) override {
    return inner_->bootstrap_all_gather(operation, input);
  }
  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override {
    return inner_->allocate(operation, bytes, device);
  }
  std::shared_ptr<FailureBoard> failure_board() override { return inner_->failure_board(); }
  void close() noexcept override { inner_->close(); }

 protected:
  ForwardingBackend(BackendTraits traits, std::shared_ptr<Backend> inner)
      : Backend(std::move(traits), inner->rank(), inner->topology()), inner_(std::move(inner)) {}
  Backend& inner() const { return *inner_; }
  const std::shared_ptr<Backend>& shared_inner() const { return inner_; }

 private:
  std::shared_ptr<Backend> inner_;
};

}  // namespace tutti::comm
